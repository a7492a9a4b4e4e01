"""Adapters, one folder per engine; what they share is beside them.

A file of an adapter holds what is specific to its engine; its part in a fleet is `fleet`. What
all of them share is here:

- `scheduler`: a request's life beside an engine's scheduler, from the prompt to the settled
  account: one state machine (`request`), plans and donors (`planner`), `claims`, `captures`,
  samples (`shadows`), rungs (`staged`), and `side`, which does these in order through `port`.
- `worker`: K/V beside an engine's model: donors and leases, loads, captures, passes over holes,
  and `side`, which does these in order through `port`.
- `options` and `modes` (what users may ask for), `refusals`, `certificates` and `isolation` (what
  is allowed), `plan_cuts`, `probing` and `rotary` (what is loaded), `held_contents` (what is kept),
  `stats`, `counters`, `audit`, `findings` and `logs` (what is said), and `ladder`, segmented reuse
  where an engine gives no access to its model (`ladder_desk` and `ladder_socket` where its API has
  no room for our fields).

docs/write-an-adapter.md says how an engine is added.
"""
