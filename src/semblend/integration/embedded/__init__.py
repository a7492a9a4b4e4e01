"""The embedded engine's adapter: `fleet` is its part in a fleet."""
