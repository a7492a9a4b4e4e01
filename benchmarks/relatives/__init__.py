"""Relatives of the reference model: does what was found on it hold for other architectures?"""
