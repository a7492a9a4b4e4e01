"""NVIDIA Dynamo: its selection service asked in process, its workers pinned by header or body.

Dynamo stays the router. SemBlend asks whom it would take and what that worker would have to
compute (`selection`), compares that with a donor's owner (`semblend.fleet.placement`), and
pins the request only where the owner is expected to be faster (`pinning`).
"""
