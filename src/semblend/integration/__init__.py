"""Adapters, one folder per engine; what they share is in this folder.

An adapter's files hold what is specific to its engine; `fleet` is its part in a fleet. All
adapters share:

- `scheduler`: a request's life beside an engine's scheduler, from the prompt to the settled
  account: one state machine (`request`), plans and donors (`engine_planner`), `claims`,
  `capture_orders`, samples (`shadows`), conversations (`chain_rules`), rungs (`staged`), and
  `side`, which runs these in order through `port`.
- `worker`: K/V beside an engine's model: donors and leases, loads, captures, passes over holes,
  and `side`, which runs these in order through `port`.
- `options` and `modes` (what users may ask for), `refusals`, `loaded_model.model_certificates` and
  `isolation` (what is allowed), `plan_cuts`, `probing` and `loaded_model.rotary_rows` (what is
  loaded), `held_contents` (what is kept), `stats`, `counters`, `prometheus`, `auditing`, `findings`
  and `engine_log` (what is reported), `fleet_part` (what is shared with other machines),
  `adapter_names` (which LoRA adapter a request runs with), and `ladder`: segmented reuse for
  engines that give no access to their model (`ladder_desk` and `ladder_socket` if the engine's API
  has no room for our fields).

docs/write-an-adapter.md explains how to add an engine.
"""
