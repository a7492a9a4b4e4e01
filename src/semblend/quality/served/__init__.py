"""Measuring engines that serve: by the requests their users send, and what they answer."""
