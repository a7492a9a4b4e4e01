"""The same-step hazard: a hit on blocks that nobody has written yet.

vLLM lets a request hit prefix blocks that another request, scheduled in the same
step, only computes in this step's forward. That is sound for the forward itself,
which writes before it reads, but a nested pass runs before the forward and would
read garbage. Such a request waits one step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def reads_unwritten_blocks(
    request: Any,
    *,
    local_tokens: int,
    live: Iterable[Any],
    manager: Any,
    block_size: int,
    hash_block_size: int,
) -> bool:
    """Whether the request's local hit of `local_tokens` reaches into unwritten blocks.

    Blocks of a prefix are computed in order, so the hit's last block decides.

    Parameters
    ----------
    live
        Every request that is not finished. Their `num_computed_tokens` count only steps
        that were scheduled before this one.
    """
    index = local_tokens // hash_block_size - 1
    if index < 0 or index >= len(request.block_hashes):
        return False
    found = manager.block_pool.get_cached_block(request.block_hashes[index], [0])
    if not found or found[0].ref_cnt == 0:
        return False
    last = found[0].block_id
    for other in live:
        if other is request:
            continue
        try:
            (blocks,) = manager.get_block_ids(other.request_id)
        except (KeyError, ValueError):
            continue
        if last in blocks[other.num_computed_tokens // block_size :]:
            return True
    return False
