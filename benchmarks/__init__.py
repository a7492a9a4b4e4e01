"""Benchmarks: one command a table, each figure beside what it depends on."""
