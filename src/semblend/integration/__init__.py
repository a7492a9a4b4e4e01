"""Adapters, one folder an engine; what they share (`audit`, `ladder`) lies beside them."""
