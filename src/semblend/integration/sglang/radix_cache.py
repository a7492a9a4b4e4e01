"""The radix-cache backend `semblend`: SGLang's unified tree, asked for more than prefixes.

Exact prefixes stay the tree's business, unchanged. What SemBlend adds is reported as
tokens in "host memory" that `init_load_back` brings to the device, into slots which
belong to the request: SGLang's own pattern for K/V that comes from elsewhere. Nothing
of such a request enters the tree (`skip_radix_cache_insert`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from semblend.integration.sglang.request_state import known_state
from semblend.integration.sglang.scheduler_side import SchedulerSide


class SemBlendRadixCache(UnifiedRadixCache):
    """The unified tree, with request-private regions behind its matches."""

    def __init__(
        self, params: Any, *, make_side: Callable[[SemBlendRadixCache], SchedulerSide]
    ) -> None:
        """`make_side` makes what decides for this tree; it is given the tree."""
        self._loaded_ours = False
        """Whether the last load was ours: SGLang asks who owns it without naming the request."""
        self.made_with = params
        """SGLang's CacheInitParams: also how K/V events name pages."""
        self._is_made = False
        super().__init__(params)
        self.side = make_side(self)
        self._is_made = True

    def match_prefix(self, params: Any) -> Any:
        """The tree's match, and what SemBlend can load behind it."""
        result = super().match_prefix(params)
        return result if params.req is None else self.side.offered(params.req, params.key, result)

    def init_load_back(self, params: Any) -> tuple[int, Any] | None:
        """Load what was offered to this request; without an offer, what the tree itself has."""
        self._loaded_ours = self.side.has_offered(params.req)
        if self._loaded_ours:
            return self.side.load(params)
        loaded: tuple[int, Any] | None = super().init_load_back(params)
        if loaded is not None:
            self.side.loaded_by_the_tree(params.req, loaded[0])
        return loaded

    def load_back_is_cache_owned(self) -> bool:
        """Slots SemBlend loads belong to the request, which frees them with its row.

        Asked right after a load, and of that load.
        """
        return not self._loaded_ours and bool(super().load_back_is_cache_owned())

    def prefix_device_indices(self, req: Any) -> torch.Tensor:
        """Slots of the request's prefix: the tree's path, then its private region."""
        state = known_state(req)
        load = None if state is None else state.handle.load
        if load is None:
            slots: torch.Tensor = super().prefix_device_indices(req)
            return slots
        root = self.root_node_handle(req.extra_key)
        path = self.tree_core.collect_full_device_indices(req.last_node, root)
        exact = load.plan.exact_tokens
        return torch.cat([path[:exact], load.slots.to(path.device)])[: req.prefix_len]

    def checkpoint(self, req: Any, *, up_to: int, **kwargs: Any) -> None:
        """The tree takes over exact K/V, which may then be reused from."""
        super().checkpoint(req, up_to=up_to, **kwargs)
        table = self.req_to_token_pool.req_to_token
        held = min(up_to, req.kv.cache_protected_len)
        self.side.checkpointed(req, table[req.kv.req_pool_idx, :held])

    def _apply_cache_action(self, action: Any) -> None:
        """What the tree lets go of goes back to the pool; donors that end there are gone."""
        slots = getattr(action, "indices", None)
        if slots:
            self.side.freed(list(slots))
        super()._apply_cache_action(action)

    def claim_kv_row(self, req: Any) -> bool:
        """Asked before the request's row is freed; a conversation may keep what is its own."""
        if super().claim_kv_row(req):
            return True
        self.side.ending(req)
        return False

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        """The request's row is freed."""
        super().on_release(req, checkpointed=checkpointed)
        self.side.released(req)

    def reset(self) -> None:
        """Empty the tree, and forget every donor in it."""
        super().reset()
        if self._is_made:  # the parent's constructor calls this
            self.side.flushed()
