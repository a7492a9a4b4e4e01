"""Fuzzes real SGLang with the backend: faults, retraction, aborts; answers must match cold."""
