"""Passes on a GPU: the models, kernels and graphs of our own."""
