"""The worker side of every adapter: donors, loads and captures of K/V."""
