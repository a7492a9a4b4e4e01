"""Runs the Triton kernel in Triton's interpreter and prints how it compares with torch.

A process of its own, because Triton decides when it is imported whether to interpret:

    TRITON_INTERPRET=1 python -m tests.kv.triton_interpreter
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from semblend.kv import triton_copy
from semblend.kv.depth_drift import is_shifted
from semblend.kv.layerwise import layer_chunks
from semblend.kv.layout import by_slot
from semblend.kv.paged_kv import PagedKv
from semblend.kv.rotary_spec import Pairing
from semblend.kv.span_batch import flat_batch
from semblend.kv.transfer import copy_spans
from tests.kv.layout_cases import LayoutCase, by_places, contents, layout_case
from tests.kv.span_cases import SpanCase, make_case

LAYOUT_CASES = 40
HEADS = ((16, 16, 2), (20, 12, 3), (10, 2, 1), (24, 24, 1))
"""(head_dim, rotary_dim, kv_heads): whole and partial rotary, powers of two and not."""


def compare(case: SpanCase) -> dict[str, object]:
    """Both backends on a poisoned pool."""
    pools = []
    for backend in ("torch", "triton"):
        pool = torch.full_like(case.pool, torch.nan)
        copy_spans(pool, case.copies, case.table, backend=backend)
        pools.append(by_slot(pool))
    want, got = pools
    bits = {2: torch.int16, 4: torch.int32}[want.dtype.itemsize]
    stays = [c for c in case.copies if c.source_start == c.target_start]
    return {
        "error": float((want.double() - got.double()).nan_to_num(0.0).abs().max()),
        "same_slots": torch.equal(want.isnan(), got.isnan()),
        "same_values": torch.equal(want[:, 1].view(bits), got[:, 1].view(bits)),
        "stays_exact": all(
            torch.equal(
                got[:, 0, torch.from_numpy(c.target_slots)].view(bits),
                by_slot(c.source)[:, 0, torch.from_numpy(c.source_slots)].view(bits),
            )
            for c in stays
        ),
        "stays": len(stays),
    }


def compare_shapes(case: SpanCase) -> bool:
    """Whether every launch shape gives the same bits."""
    results = []
    for rows, layers in itertools.product((4, 64), (1, 2)):
        pool = torch.zeros_like(case.pool)
        shape = triton_copy.LaunchShape(rows=rows, layers=layers)
        paged = PagedKv.of_tensor(pool)
        batch = flat_batch(paged, case.copies, case.table)
        assert batch is not None
        prepared = triton_copy.prepare(paged, batch)
        triton_copy.launch(paged, prepared, case.table, shape)
        results.append(pool)
    return all(torch.equal(results[0], other) for other in results[1:])


def compare_layouts(seed: int) -> dict[str, object]:
    """The kernel on one of any engine's pools: against torch, float64, and itself in parts."""
    case = layout_case(seed)
    pools = []
    for backend in ("torch", "triton"):
        pool = case.make()
        copy_spans(pool, case.batch, case.table, drift=case.drift, backend=backend)
        pools.append(contents(pool))
    torch_pool, got = pools
    bits = {2: torch.int16, 4: torch.int32}[case.dtype.itemsize]
    fixed = np.setdiff1d(np.arange(got.shape[2]), case.batch.target_slots)
    fixed = np.concatenate((fixed, case.stays()))
    return {
        "dtype": str(case.dtype).removeprefix("torch."),
        "shifted": case.drift is not None and bool(is_shifted(case.batch).any()),
        "pool": _is_pool(case),
        "from_torch": float((torch_pool.double() - got.double()).abs().max()),
        "from_float64": float((case.expected() - got.double()).abs().max()),
        "exact": torch.equal(torch_pool[:, :, fixed].view(bits), got[:, :, fixed].view(bits)),
        "parts_agree": all(torch.equal(part, got) for part in in_parts(case)),
        "places_agree": not _is_pool(case) or torch.equal(from_places(case), got),
    }


def _is_pool(case: LayoutCase) -> bool:
    return isinstance(case.batch.sources[0], PagedKv)


def from_places(case: LayoutCase) -> torch.Tensor:
    """With slots that are looked up beside the kernel."""
    pool = case.make()
    batch, lookup = by_places(case.batch)
    copy_spans(pool, batch, case.table, drift=case.drift, lookup=lookup, backend="triton")
    return contents(pool)


def in_parts(case: LayoutCase) -> Iterator[torch.Tensor]:
    """A few layers at a time: from sources that stay where they are, and through a ring."""
    pool = case.make()
    ready = triton_copy.prepare(pool, case.batch, base=pool.keys[0], drift=case.drift)
    chunks = layer_chunks(pool.layer_count, 2)
    for first, end in chunks:
        triton_copy.launch(pool, ready, case.table, layers=range(first, end), source_layer=first)
    yield contents(pool)
    sources = case.batch.sources
    if isinstance(sources[0], PagedKv):
        return
    pool = case.make()
    rings = [[torch.empty_like(source[:2]) for source in sources] for _ in range(2)]
    for number, (first, end) in enumerate(chunks):
        ring = rings[number % 2]
        for staged, source in zip(ring, sources, strict=True):
            staged[: end - first] = source[first:end]
        ready = triton_copy.prepare(
            pool, replace(case.batch, sources=tuple(ring)), drift=case.drift
        )
        triton_copy.launch(pool, ready, case.table, layers=range(first, end))
    yield contents(pool)


def main() -> None:
    """Print one JSON object: results by case."""
    torch.set_num_threads(1)
    report: dict[str, object] = {"layouts": [compare_layouts(seed) for seed in range(LAYOUT_CASES)]}
    types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    for seed, ((name, dtype), pairing, (dim, rotary, heads)) in enumerate(
        itertools.product(types.items(), Pairing, HEADS)
    ):
        case = make_case(
            seed=seed,
            dtype=dtype,
            pairing=pairing,
            head_dim=dim,
            rotary_dim=rotary,
            kv_heads=heads,
            layers=3,
            page_size=4,
            lengths=[9, 1, 17, 5],
        )
        report[f"{name} {pairing.value} {dim}/{rotary}x{heads}"] = compare(case)
    report["shapes agree"] = compare_shapes(case)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
