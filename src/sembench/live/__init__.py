"""Live runs: real requests to a real endpoint, timed from the client's side.

`clients` speak a protocol and return a :class:`Reply`. `replay` plays a manifest item
(empty the caches, serve the donors, serve the recipient). `load` sends many requests at
once. What a backend does not report stays unknown.
"""
