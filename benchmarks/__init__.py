"""Benchmarks: one command per table; every figure states what it depends on."""
