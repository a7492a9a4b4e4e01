"""SemBlend inside vLLM: segmented reuse in an unmodified engine.

What every engine needs is in `integration.scheduler` and `integration.worker`; here is what
vLLM's API is about:

- `connector_v1`: the class vLLM loads; forwards each call to one of the two sides.
- `scheduler_port`: vLLM's requests, blocks and steps, as the shared scheduler side asks for them;
  `block_hashes` (the prefix cache stays exact), `samples` (`n` > 1), `namespaces`, `setup`.
- `worker_port`: vLLM's K/V cache and model, as the shared worker side asks for them;
  `paged_access`, `nested_pass`, `lora`, `rotary`, `ranks`.
- `worker`: the `--worker-cls` that hands the model to the connector and says when weights change.
- `metadata`, `stats`: orders, reports and counters as vLLM carries them.
- `fleet`: this engine's part in a fleet.
- `options`, `support`, `versions`, `tokenizer`, `diagnosis`: what is set, refused and said.
- `ladder_client`: climbs the ladder against a server.

Nothing is imported here: vLLM loads `connector_v1` by its name.
"""
