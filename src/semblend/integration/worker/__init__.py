"""What every adapter does beside its engine's model: donors, loads and captures of K/V."""
