"""Fuzzes real vLLM with the connector: faults, preemption, aborts; answers must match cold."""
