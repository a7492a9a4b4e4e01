"""How a worker's events leave it: one publisher, to an in-process bus or to JetStream."""
