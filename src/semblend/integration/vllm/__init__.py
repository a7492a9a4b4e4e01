"""SemBlend inside vLLM: segmented reuse in an unmodified engine.

What every engine needs is in `integration.scheduler` and `integration.worker`. This package
holds what is specific to vLLM's API:

- `connector_v1`: the class vLLM loads; forwards each call to one of the two sides.
- `scheduler_port`: vLLM's requests, blocks and steps, as the shared scheduler side needs them;
  `block_hashes` (keeps the prefix cache exact), `samples` (`n` > 1), `namespaces`, `setup`.
- `worker_port`: vLLM's K/V cache and model, as the shared worker side needs them;
  `paged_access`, `nested_pass`, `lora`, `rotary`.
- `worker`: the `--worker-cls` that passes the model to the connector and reports weight changes.
- `metadata`, `stats`: orders, reports and counters in vLLM's types.
- `fleet`: this engine's part in a fleet.
- `options`, `support`, `versions`, `tokenizer`, `diagnosis`: settings, refusals and checks.
- `ladder_client`: climbs the ladder against a server.

This file imports nothing: vLLM loads `connector_v1` by name.
"""
