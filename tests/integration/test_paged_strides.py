"""Where a backend's cache keeps its numbers is found out, and used as strides where it is that."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from semblend.integration.vllm.paged_access import PagedAccess
from semblend.integration.worker.pool_proof import prove_pool
from semblend.integration.worker.segment_reads import SegmentReader
from semblend.kv.layout import block_slots
from semblend.kv.rotary_table import RotaryTable
from semblend.kv.span_batch import SpanCopy
from semblend.kv.transfer import copy_spans

LAYERS, BLOCKS, SIZE, HEADS, DIM = 3, 9, 4, 2, 6
ROWS = torch.arange(64)[:, None] * torch.tensor([1.0, 0.3, 0.01])
TABLE = RotaryTable(cos=ROWS.cos(), sin=ROWS.sin())

Views = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def blocks_then_kv(cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return cache[:, 0], cache[:, 1]


def heads_then_both(cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    by_token = cache.transpose(1, 2)
    return by_token[..., :DIM], by_token[..., DIM:]


def number_by_number(cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return cache[..., 0], cache[..., 1]


def packed(cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """K in pairs of tokens, as the CPU backend packs it: not by strides."""
    keys = cache[:, 0].view(-1, SIZE // 2, HEADS, DIM, 2).permute(0, 1, 4, 2, 3)
    return keys, cache[:, 1].view(-1, SIZE // 2, 2, HEADS, DIM)


CACHES: dict[str, tuple[Views, Callable[[], torch.Tensor], bool]] = {
    "[blocks, 2, size, heads, dim]": (
        blocks_then_kv, lambda: torch.zeros(BLOCKS, 2, SIZE, HEADS, DIM), True,
    ),
    "the same, heads before tokens in memory": (
        blocks_then_kv,
        lambda: torch.zeros(BLOCKS, 2, HEADS, SIZE, DIM).transpose(2, 3),
        True,
    ),
    "the same, K before V of all blocks in memory": (
        blocks_then_kv, lambda: torch.zeros(2, BLOCKS, SIZE, HEADS, DIM).transpose(0, 1), True,
    ),
    "[blocks, heads, size, 2 dim]": (
        heads_then_both, lambda: torch.zeros(BLOCKS, HEADS, SIZE, 2 * DIM), True,
    ),
    "the same, tokens before heads in memory": (
        heads_then_both,
        lambda: torch.zeros(BLOCKS, SIZE, HEADS, 2 * DIM).transpose(1, 2),
        True,
    ),
    "K and V number by number": (
        number_by_number, lambda: torch.zeros(BLOCKS, SIZE, HEADS, DIM, 2), True,
    ),
    "packed": (packed, lambda: torch.zeros(BLOCKS, 2, SIZE * HEADS * DIM), False),
}  # fmt: skip


class Backend:
    """Writes tokens as an attention backend does, through its own view of a cache."""

    def __init__(self, views: Views) -> None:
        self._views = views

    def do_kv_cache_update(self, layer, keys, values, cache, slots) -> None:
        for view, tokens in zip(self._views(cache), (keys, values), strict=True):
            block, offset = slots // SIZE, slots % SIZE
            if view.ndim == 5:
                view[block, offset // 2, offset % 2] = tokens
            else:
                view[block, offset] = tokens


def access_to(name: str) -> PagedAccess:
    views, make, _ = CACHES[name]
    layers = {
        f"layer {number}": SimpleNamespace(
            num_kv_heads=HEADS, head_size=DIM, kv_cache=make(), impl=Backend(views)
        )
        for number in range(LAYERS)
    }
    return PagedAccess(layers, block_size=SIZE)


def slots_of(access: PagedAccess, blocks: tuple[int, ...], start: int, end: int) -> torch.Tensor:
    return torch.from_numpy(
        block_slots(blocks, start, end, block_size=access.block_size, blocks=access.blocks)
    )


def kv_of(tokens: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(tokens)
    return torch.randn((LAYERS, 2, tokens, HEADS, DIM), generator=generator)


@pytest.mark.parametrize("name", CACHES)
def test_strides_are_found_where_there_are_any_and_lead_where_the_backend_writes(name):
    access, strided = access_to(name), CACHES[name][2]
    assert (access.pool is not None) is strided
    kv, blocks = kv_of(10), (5, 2, 7)
    for layer in range(LAYERS):
        access.write(layer, kv[layer, 0], kv[layer, 1], slots_of(access, blocks, 1, 11))
    assert torch.equal(access.read(blocks, 1, 11), kv)
    if access.pool is not None:
        slots = slots_of(access, blocks, 1, 11)
        for layer in range(LAYERS):
            for part, views in enumerate((access.pool.keys, access.pool.values)):
                assert torch.equal(views[layer][slots // SIZE, slots % SIZE], kv[layer, part])


@pytest.mark.parametrize("name", CACHES)
def test_spans_copied_in_are_what_the_backend_reads(name):
    access, kv, blocks = access_to(name), kv_of(9), (3, 8, 1)
    copy = SpanCopy(
        source=kv,
        source_slots=np.arange(9),
        target_slots=slots_of(access, blocks, 2, 11).numpy(),
        source_start=4,
        target_start=30,
    )
    copy_spans(access.destination, [copy], TABLE)
    got, offsets = access.read(blocks, 2, 11), torch.arange(9)
    torch.testing.assert_close(got[:, 0], TABLE.rerotate(kv[:, 0], offsets + 4, offsets + 30))
    assert torch.equal(got[:, 1], kv[:, 1])


@pytest.mark.parametrize("name", CACHES)
@pytest.mark.parametrize(("start", "end"), [(0, 12), (0, 8), (4, 11), (2, 5), (0, 3)])
def test_prompts_are_read_as_the_segments_they_are_stored_in(name, start, end):
    access, kv, blocks = access_to(name), kv_of(12), (6, 2, 4)
    for layer in range(LAYERS):
        access.write(layer, kv[layer, 0], kv[layer, 1], slots_of(access, blocks, 0, 12))
    parts = SegmentReader(access, 5).read(blocks, start, end)
    assert [part.shape[2] for part in parts[:-1]] == [5] * (len(parts) - 1)
    assert all(part.is_contiguous() for part in parts)
    assert torch.equal(torch.cat(parts, dim=2), kv[:, :, start:end])


def test_strides_that_hold_are_proven_and_those_that_do_not_are_dropped():
    access = access_to("[blocks, heads, size, 2 dim]")
    pool = access.pool
    prove_pool(access, TABLE)
    assert access.pool is pool
    other = access_to("[blocks, heads, size, 2 dim]")
    access.pool = other.pool  # leads into somebody else's memory
    prove_pool(access, TABLE)
    assert access.pool is None
    assert access.destination is access


def test_a_proof_that_raises_is_none():
    access = access_to("[blocks, 2, size, heads, dim]")
    short = RotaryTable(cos=TABLE.cos[:2], sin=TABLE.sin[:2])
    prove_pool(access, short)
    assert access.pool is None
