"""SemBlend inside vLLM: segmented reuse in an unmodified engine.

Where things are, scheduler side first:

- `connector_v1`: the class vLLM loads; forwards each call to one of the two sides.
- `scheduler_side`, `request_state`, `claims`, `settlement`: what is claimed, admitted, confirmed
  and reported.
- `bridge`, `meaning`, `certificates`: prompts to plans; evidence by meaning; what may be loaded.
- `capture_orders`, `capture_choice`: which prompts become donors, and a donor's life here.
- `block_hashes`: the prefix cache stays exact.
- `staged`: rungs of the salted ladder, for engines whose worker class cannot be set.
- `metadata`: everything that travels between the two sides.
- `worker_side`, `worker_loads`, `loads_in_flight`, `loading`, `pool_proof`, `nested_pass`,
  `pass_split`, `probing`, `capture`, `segment_reads`, `donors`, `paged_access`, `rotary`, `ranks`,
  `self_test`: the K/V.
- `lora`, `weights`, `samples`, `held_blocks`: adapters, new weights, `n` > 1, blocks kept longer.
- `fleet`, `fleet_donors`, `segment_exchange`: donors announced to, shared with and fetched from
  other machines; `exchange`: what the two sides ask of them.
- `worker`: the `--worker-cls` that hands the model to the connector.
- `options`, `modes`, `setup`, `support`, `versions`, `namespaces`, `stats`, `diagnosis`: what is
  set, refused, counted and said about it.
- `ladder_client`: climbs the ladder against a server.

Nothing is imported here: vLLM loads `connector_v1` by its name.
"""
