"""Fuzzes every parser with random and damaged input; run `python -m benchmarks.fuzz`."""
