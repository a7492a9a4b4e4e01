"""How a worker's events leave it: one publisher, to a bus in the process or to JetStream."""
