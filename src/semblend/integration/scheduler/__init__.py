"""What every adapter does beside its engine's scheduler: from a prompt to a settled account."""
