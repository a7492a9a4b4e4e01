"""The scheduler side of every adapter: from a prompt to a settled account."""
