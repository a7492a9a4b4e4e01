"""Decides where to send a request by comparing the cost of waiting, computing and moving K/V."""
