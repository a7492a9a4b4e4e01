"""What reuse does to answers: documents with known facts, workloads and measurements."""
