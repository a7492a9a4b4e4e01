"""Finding donors: fingerprints of tokens first, meaning second."""
