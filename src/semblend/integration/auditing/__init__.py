"""Audit streams: how adapters write them, and what they say."""
