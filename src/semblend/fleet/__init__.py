"""More than one worker: events about donors, a directory of them, and where to send a request.

`keys` and `sketch` turn prompts into what may leave a worker; `events` carries it;
`directory` follows the events; `residency` follows the engines' own caches;
`placement` chooses a worker; `transport` moves K/V.
"""
