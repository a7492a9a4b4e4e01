"""fp8 K/V through both backends of the mover: the same bytes, and as many clipped.

Also `TRITON_INTERPRET=1 python -m tests.kv.fp8_case`, or with `cuda` on a GPU.
"""

from __future__ import annotations

import sys

import numpy as np
import torch

from semblend.kv.numbers import decoded
from semblend.kv.paged_kv import PagedKv
from semblend.kv.rotary_spec import Pairing
from semblend.kv.rotary_table import RotaryTable
from semblend.kv.span_batch import SpanCopy
from semblend.kv.transfer import copy_spans

LAYERS, TOKENS, HEADS, DIM = 2, 48, 2, 16


def moved(backend: str, pairing: Pairing, device: str) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The donor, the pool after one span moved and one stayed, and the numbers clipped."""
    generator = torch.Generator().manual_seed(3)
    shape = (LAYERS, 2, TOKENS, HEADS, DIM)
    numbers = torch.randn(shape, generator=generator) * 200
    donor = numbers.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).to(device)
    pool = torch.full_like(donor, 0x7F)
    views = pool[:, :, :, None]
    paged = PagedKv(
        keys=tuple(views[layer, 0] for layer in range(LAYERS)),
        values=tuple(views[layer, 1] for layer in range(LAYERS)),
        clipped=torch.zeros(1, dtype=torch.int64, device=device),
    )
    angles = torch.outer(torch.arange(256.0), 1e4 ** -torch.linspace(0, 1, DIM // 2))
    table = RotaryTable(cos=angles.cos(), sin=angles.sin(), pairing=pairing).to(device)
    half = np.arange(TOKENS // 2)
    spans = [
        SpanCopy(
            source=donor,
            source_slots=half,
            target_slots=half + TOKENS // 2,
            source_start=3,
            target_start=150,
        ),
        SpanCopy(
            source=donor,
            source_slots=half + TOKENS // 2,
            target_slots=half,
            source_start=60,
            target_start=60,
        ),
    ]
    copy_spans(paged, spans, table, backend=backend)
    assert paged.clipped is not None
    return donor, pool, int(paged.clipped)


def check(device: str = "cpu", backends: tuple[str, ...] = ("torch", "triton")) -> None:
    """Raise where a backend does something else."""
    for pairing in Pairing:
        pools = []
        for backend in backends:
            donor, pool, clipped = moved(backend, pairing, device)
            half = TOKENS // 2
            assert torch.equal(pool[:, :, :half], donor[:, :, half:]), "what stays keeps its bits"
            assert torch.equal(pool[:, 1, half:], donor[:, 1, :half]), "V is copied"
            assert not bool(torch.isnan(decoded(pool)).any()), "what does not fit is clipped"
            assert clipped > 0
            pools.append((pool.cpu(), clipped))
        for pool, clipped in pools[1:]:
            first, count = pools[0]
            same = float((pool == first).float().mean())
            # Sums that are multiplied and added at once may round a tie apart.
            assert same > 0.998, f"{pairing}: {same:.4f} of the bytes are alike"
            torch.testing.assert_close(decoded(pool), decoded(first), rtol=0.13, atol=2.0**-9)
            assert clipped == count


if __name__ == "__main__":
    check(*sys.argv[1:2])
    print("ok")
