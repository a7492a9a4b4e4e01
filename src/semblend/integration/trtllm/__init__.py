"""SemBlend inside TensorRT-LLM: exact prefixes natively, segments through the salted ladder.

Where things are, scheduler side first:

- `connector`: the two classes TensorRT-LLM loads; each call goes to one of the two sides.
- `scheduler_side`, `scheduler_port`, `setup`: the shared scheduler side (`integration.scheduler`)
  as TensorRT-LLM calls it, and what it asks of the engine. What is offered cannot be taken back,
  so the leader alone decides what the ranks keep (`scheduler.rank_room`).
- `semantic_plan`: plans and lookups in the words of TensorRT-LLM's semantic-KV contract.
- `ladder_client`: segments with the public API alone.
- `metadata`: what the leader tells every rank in a step.
- `worker_side`, `pool_view`: the K/V of one rank; the rest is `integration.worker.agreeing_worker`.
- `wiring`: how the two halves in the leader's process find one another.
- `upstream`, `interfaces`, `engine_facts`, `namespaces`, `support`: what the engine is known to be,
  and what is refused by name.
- `fleet`: donors announced to a fleet.
- `options`, `launcher`, `diagnosis`, `contract`: what is set, started, judged, relied on.

Nothing is imported here: TensorRT-LLM loads `connector` by its name.
"""
