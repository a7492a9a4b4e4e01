"""NVIDIA Dynamo: queries its selection service in process and pins workers by header or body.

Dynamo stays the router. SemBlend asks which worker it would take and what that worker would
compute (`selection`), compares that with a donor's owner (`semblend.fleet.placement`), and
pins the request only if the owner is expected to be faster (`pinning`).
"""
