"""What `semblend bench` and `benchmarks/` measure with, and how they print it."""
