"""Moves donor K/V between machines: existing stores behind one small interface."""
