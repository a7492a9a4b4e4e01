"""Chains in vLLM: a request that continues another finds its blocks in vLLM's own prefix cache.

vLLM looks for a prefix by `request.block_hashes`, in `KVCacheManager.get_computed_blocks`, and
asks connectors only afterwards. So that call is wrapped: just before the lookup the request's
hashes become the chain's, if it continues one. vLLM then finds, counts, touches and evicts the
blocks as it does any others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semblend.core.tokens import TokenArray
from semblend.integration.scheduler.engine_chains import Name
from semblend.integration.scheduler.port import Loan
from semblend.integration.scheduler.side import SchedulerSide
from semblend.integration.vllm.scheduler_port import VllmRequest, VllmScheduler

ONE_GROUP = [0]
"""With several cache groups nothing is continued: a block has a name in each of them."""


class VllmChains:
    """The names of vLLM's cached blocks: their hashes."""

    def __init__(self, port: VllmScheduler) -> None:
        self._port = port

    @property
    def total_blocks(self) -> int:
        """Blocks of vLLM's cache."""
        return int(self._port.manager.block_pool.num_gpu_blocks)

    def public_names(self, handle: VllmRequest) -> Sequence[Name]:
        """The hashes vLLM gave the prompt's blocks."""
        return handle.public_hashes

    def public_name(self, handle: VllmRequest, number: int) -> Name | None:
        """The hash vLLM gave one whole block of the prompt."""
        return handle.public_hash(number)

    def names(self, handle: VllmRequest) -> Sequence[Name]:
        """The hashes of all whole blocks, as they are now."""
        return tuple(handle.request.block_hashes)

    def cached(self, names: Sequence[Name]) -> int:
        """How many of these hashes, from the first on, are in the prefix cache."""
        pool = self._port.manager.block_pool
        for number, name in enumerate(names):
            if pool.get_cached_block(name, ONE_GROUP) is None:
                return number
        return len(names)

    def take_over(self, handle: VllmRequest, first: int, names: Sequence[Name]) -> None:
        """Install a chain's hashes, and private ones behind them."""
        handle.continue_with(first, names)

    def give_up(self, handle: VllmRequest) -> None:
        """Restore the hashes vLLM computed."""
        handle.leave_chain()

    def public_blocks(self, handle: VllmRequest, tokens: TokenArray) -> VllmPublicBlocks:
        """vLLM's own blocks of these tokens under the request's salt."""
        return VllmPublicBlocks(handle.stand_in(tokens), self._port)


class VllmPublicBlocks:
    """Blocks of vLLM's exact prefix cache, by a request that stands in for their tokens."""

    def __init__(self, request: Any, port: VllmScheduler) -> None:
        self._request = request
        self._pool = port.manager.block_pool
        self._size = port.hash_block_size

    @property
    def names(self) -> Sequence[Name]:
        """The hashes vLLM gives these tokens."""
        return tuple(self._request.block_hashes)

    def hold(self, most: int) -> Loan:
        """Take a reference to each block that is cached, from the first on."""
        held = []
        for name in self._request.block_hashes[:most]:
            found = self._pool.get_cached_block(name, ONE_GROUP)
            if found is None:
                break
            held += found
        self._pool.touch(held)
        return Loan(block_ids=tuple(block.block_id for block in held), blocks=held)

    def publish(self, blocks: Sequence[Any], first: int, end: int) -> None:
        """Enter blocks into the prefix cache, as vLLM does once it has computed them."""
        if end > first:
            self._pool.cache_full_blocks(
                self._request, list(blocks), first, end, self._size, ONE_GROUP[0]
            )


def ask_before_lookups(manager: Any, side: SchedulerSide[VllmRequest]) -> None:
    """Make vLLM's prefix lookup ask first whether a request continues a chain."""
    look_up = getattr(manager, "get_computed_blocks", None)
    if look_up is None or getattr(manager, "num_kv_cache_groups", 1) != 1:
        side.without_chains()
        return

    def get_computed_blocks(request: Any) -> Any:
        side.before_lookup(request)
        return look_up(request)

    manager.get_computed_blocks = get_computed_blocks
