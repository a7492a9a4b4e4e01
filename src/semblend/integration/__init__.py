"""Adapters, one folder per engine; what they share is in this folder.

An adapter's files hold what is specific to its engine; `fleet` is its part in a fleet. All
adapters share:

- `scheduler`: a request's life beside an engine's scheduler, from the prompt to the settled
  account: one state machine (`request`), plans and donors (`planner`), `claims`, `captures`,
  samples (`shadows`), rungs (`staged`), and `side`, which runs these in order through `port`.
- `worker`: K/V beside an engine's model: donors and leases, loads, captures, passes over holes,
  and `side`, which runs these in order through `port`.
- `options` and `modes` (what users may ask for), `refusals`, `certificates` and `isolation` (what
  is allowed), `plan_cuts`, `probing` and `rotary` (what is loaded), `held_contents` (what is kept),
  `stats`, `counters`, `audit`, `findings` and `logs` (what is reported), and `ladder`: segmented
  reuse for engines that give no access to their model (`ladder_desk` and `ladder_socket` if the
  engine's API has no room for our fields).

docs/write-an-adapter.md explains how to add an engine.
"""
