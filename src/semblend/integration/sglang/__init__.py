"""SemBlend inside SGLang: segmented reuse in an unmodified engine.

Where things are, in the order a request meets them:

- `fleet`: the entry point SGLang calls in each of its processes, with a fleet to join; `plugin`
  registers backend and hook.
- `radix_cache`: the radix-cache backend `semblend`, a subclass of SGLang's unified tree.
- `scheduler_side`: the shared side of engines with a tree (`integration.tree`), as the radix cache
  calls it; `request_state`: where a request's state is kept.
- `tree_port`, `kv_pool`: the tree, its keys and slots, and the pool they lie in.
- `forward_hook`, `batch_rows`, `nested_pass`, `exact_recompute`: holes, computed before the
  engine's own forward; `pass_proof`: how many of them a pass may hold.
- `options`, `support`, `versions`, `contract`, `namespaces`: what is set, refused and
  proven at start; `stats`, `log_lines`: what is counted and said.
- `radix_patcher`, `launcher`: the published names `patch_radix_cache` and `semblend-sglang`.

Nothing is imported here: SGLang loads `fleet` by its name.
"""
