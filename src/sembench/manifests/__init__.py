"""Reads, writes, freezes, verifies and audits manifests."""
