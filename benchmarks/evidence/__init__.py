"""Reuse under load and over time, against what people would use instead. See docs/evidence.md."""
