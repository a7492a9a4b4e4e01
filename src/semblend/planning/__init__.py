"""From verified runs to a plan: cover, cost, gates and recompute policies."""
