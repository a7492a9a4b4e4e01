"""Every parser under random and damaged input; `python -m benchmarks.fuzz` runs it all."""
