"""Recompute policies, one a file. `base` holds the interface and the registry."""
