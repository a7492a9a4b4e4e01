"""SemBlend inside SGLang: segmented reuse in an unmodified engine.

Where things are, in the order a request meets them:

- `fleet`: the entry point SGLang calls in each of its processes, with a fleet to join; `plugin`
  registers backend and hook.
- `radix_cache`: the radix-cache backend `semblend`, a subclass of SGLang's unified tree.
- `scheduler_side`: what a prompt is offered, loaded and reported, decided by
  `integration.scheduler.admissions`; `request_state`: its slots.
- `loading`, `kv_pool`: donors found in the tree, slots taken, and the pool they lie in.
- `tree_chains`: conversations that go on over their own approximate K/V; `radix_keys`: keys of
  the tree.
- `forward_hook`, `passes`, `nested_pass`, `exact_recompute`: holes, computed before the engine's
  own forward; `pass_proof`: how many of them a pass may hold.
- `options`, `support`, `versions`, `contract`, `namespaces`: what is set, refused and
  proven at start; `stats`, `log_lines`: what is counted and said.
- `radix_patcher`, `launcher`: the published names `patch_radix_cache` and `semblend-sglang`.

Nothing is imported here: SGLang loads `fleet` by its name.
"""
