"""How reuse affects answers: documents with known facts, workloads and measurements."""
