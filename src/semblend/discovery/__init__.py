"""Finds donors: by token fingerprints first, by meaning second."""
