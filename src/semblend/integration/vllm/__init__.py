"""SemBlend inside vLLM: segmented reuse in an unmodified engine.

Where things are, scheduler side first:

- `connector_v1`: the class vLLM loads; forwards each call to one of the two sides.
- `scheduler_side`, `request_state`: what is claimed, admitted, confirmed and reported.
- `bridge`: prompts to plans, and the life of a donor as the scheduler sees it.
- `block_hashes`, `hazards`: the prefix cache stays exact; a pass never reads unwritten blocks.
- `staged`: rungs of the salted ladder, for engines whose worker class cannot be set.
- `metadata`: everything that travels between the two sides.
- `worker_side`, `load`, `nested_pass`, `capture`, `donors`, `paged_access`, `self_test`: the K/V.
- `worker`: the `--worker-cls` that hands the model to the connector.
- `options`, `modes`, `support`, `versions`, `namespaces`, `stats`: what is set, refused, counted.

Nothing is imported here: vLLM loads `connector_v1` by its name.
"""
