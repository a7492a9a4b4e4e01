"""Several workers: events about donors, a directory of donors, and request placement.

`keys` and `sketch` turn prompts into what may leave a worker. `events` carries it,
`directory` follows the events, `residency` follows the engines' own caches, `placement`
chooses a worker, and `transport` moves K/V.
"""
