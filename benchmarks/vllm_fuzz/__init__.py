"""A fuzz of real vLLM with the connector: faults, preemption and aborts, answers held to cold."""
