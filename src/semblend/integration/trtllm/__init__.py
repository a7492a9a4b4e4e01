"""SemBlend inside TensorRT-LLM: exact prefixes natively, segments through the salted ladder.

Where things are, scheduler side first:

- `connector`: the two classes TensorRT-LLM loads; each call goes to one of the two sides.
- `scheduler_side`, `setup`, `request_state`, `provider`, `semantic_plan`, `settlement`: what is
  offered and why, and the account of what became of it.
- `captures`, `donor_budget`: which prompts become donors; the scheduler alone decides
  what the ranks keep, because TensorRT-LLM has no way to take a load back.
- `ladder_client`: segments with the public API alone.
- `metadata`: everything that travels between the two sides.
- `worker_side`, `pool_view`, `donor_segments`, `agreement`: the K/V of one rank.
- `wiring`: how the two halves in the leader's process find one another.
- `upstream`, `interfaces`, `engine_facts`, `namespaces`, `support`: what the engine is known to be,
  and what is refused by name.
- `fleet`: donors announced to a fleet.
- `options`, `launcher`, `diagnosis`, `contract`: what is set, started, judged and relied on.

Nothing is imported here: TensorRT-LLM loads `connector` by its name.
"""
