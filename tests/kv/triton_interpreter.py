"""Runs the Triton kernel in Triton's interpreter and prints how it compares with torch.

A process of its own, because Triton decides when it is imported whether to interpret:

    TRITON_INTERPRET=1 python -m tests.kv.triton_interpreter
"""

from __future__ import annotations

import itertools
import json

import torch

from semblend.kv import triton_kernels
from semblend.kv.layout import by_slot
from semblend.kv.rotary import Pairing
from semblend.kv.span_batch import flat_batch
from semblend.kv.transfer import copy_spans
from tests.kv.span_cases import SpanCase, make_case

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
        shape = triton_kernels.LaunchShape(rows=rows, layers=layers)
        batch = flat_batch(by_slot(pool), case.copies, case.table)
        assert batch is not None
        prepared = triton_kernels.prepare(pool.device, batch)
        triton_kernels.launch(by_slot(pool), prepared, case.table, shape)
        results.append(pool)
    return all(torch.equal(results[0], other) for other in results[1:])


def main() -> None:
    """Print one JSON object: results by case."""
    torch.set_num_threads(1)
    report: dict[str, object] = {}
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
