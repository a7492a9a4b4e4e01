"""Faults, corruption, random histories and kills: nothing wrong is served, nothing is lost."""
