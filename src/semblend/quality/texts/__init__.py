"""Texts with known answers: documents, edits, questions, workloads."""
