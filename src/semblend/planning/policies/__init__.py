"""Recompute policies, one per file. `base` has the interface and the registry."""
