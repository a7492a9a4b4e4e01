"""A rank's copies on whatever device the pool is: out to the host, back rotated, in order.

On a GPU this covers streams, events and pinned memory; it needs no TensorRT-LLM.
"""

from __future__ import annotations

import pytest
import torch

from semblend.core.plan import Span, SpanKind
from semblend.integration.scheduler.orders import CaptureCommand, LoadCommand
from semblend.integration.trtllm.metadata import ConnectorMeta
from semblend.integration.trtllm.pool_view import PoolView
from semblend.integration.trtllm.worker_side import TrtWorkerSide
from semblend.kv.rotary_spec import RotarySpec
from semblend.kv.rotary_table import RotaryTable
from tests.integration.models import joined, random_tokens
from tests.integration.trtllm.engines import wait_for_copies

BLOCK, DIM, HEADS, LAYERS = 16, 32, 2, 3
TABLE = RotaryTable.from_spec(
    RotarySpec(head_dim=DIM, rotary_dim=DIM, theta=10_000.0, max_positions=4096)
)
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT RUN: no NVIDIA GPU"),
        ],
    ),
]


class Rank:
    """One rank's worker over a pool of random numbers."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        torch.manual_seed(3)
        inner = HEADS * BLOCK * DIM
        self.pool = torch.randn(64, LAYERS, 2, inner).to(device=device, dtype=dtype)
        self.reports = []
        self.side = TrtWorkerSide(host_donor_bytes=64 << 20, tell=self.reports.append)
        self.view = PoolView(self.pool, block_size=BLOCK, head_dim=DIM)
        self.side.register(self.view, TABLE)
        self.stream = torch.cuda.Stream() if device == "cuda" else None

    def step(self, meta: ConnectorMeta, forward=lambda: None) -> None:
        self.side.bind(meta)
        if self.stream is None:
            self.side.start_load(None)
            forward()
            self.side.after_forward(None)
            return
        with torch.cuda.stream(self.stream):
            self.side.start_load(self.stream)
            forward()
            self.side.after_forward(self.stream)

    def settle(self) -> None:
        wait_for_copies(self.side)
        self.side.finished([], [])
        if self.stream is not None:
            torch.cuda.synchronize()


def capture(tokens, blocks, number=1):
    return CaptureCommand(
        request_id=str(number),
        donor_id=f"d{number}",
        block_ids=tuple(blocks),
        tokens=tokens,
        share_key=b"n" * 16,
    )


def loading(tokens, spans, blocks, *, start, end, asynchronous=False):
    command = LoadCommand(
        request_id="9",
        block_ids=tuple(blocks),
        start=start,
        end=end,
        copies=spans,
        holes=(),
        tokens=tokens,
    )
    parked = {"9"} if asynchronous else set()
    return ConnectorMeta(loads=[command], parked=parked, private={"9"})


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_kv_goes_out_and_comes_back_rotated(device, dtype, asynchronous):
    rank = Rank(device, dtype)
    donor = random_tokens(700, seed=1)  # more than one segment
    donor_blocks = list(range(44))
    late = torch.randn_like(rank.pool[:44])

    def forward():
        rank.pool[:44] = late  # what the step computes, on its own stream

    rank.step(ConnectorMeta(captures=[capture(donor, donor_blocks)]), forward)
    rank.settle()
    assert rank.reports[0].captured == {"d1": 1}
    kept = rank.view.read(donor_blocks, 0, 700)
    # Other requests overwrite the donor's blocks: what was kept must not change.
    rank.pool[:44] = 0
    target = joined(random_tokens(32, seed=2), donor[100:420], random_tokens(20, seed=3))
    span = Span(donor_id="d1", donor_start=100, target_start=32, length=320, kind=SpanKind.MOVED)
    blocks = list(range(50, 64)) + list(range(20, 30))
    before = rank.pool.clone()
    rank.step(loading(target, (span,), blocks, start=32, end=352, asynchronous=asynchronous))
    rank.settle()
    assert rank.reports[1].loaded == {"9": 1}
    found = rank.view.read(blocks, 32, 352)
    source, goal = torch.arange(100, 420), torch.arange(32, 352)
    expected = TABLE.rerotate(kept[:, 0, 100:420].cpu(), source, goal)
    torch.testing.assert_close(found[:, 0].cpu(), expected, rtol=1e-2, atol=1e-2)
    if dtype is torch.float32:
        torch.testing.assert_close(found[:, 0].cpu(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(found[:, 1], kept[:, 1, 100:420]), "V is copied"
    touched = set(blocks[2:22])
    for block in set(range(64)) - touched:
        assert torch.equal(rank.pool[block], before[block]), f"block {block} is not the request's"
    rank.side.close()


@pytest.mark.parametrize("device", DEVICES)
def test_the_next_forward_sees_what_was_loaded(device):
    rank = Rank(device, torch.float32)
    donor = random_tokens(320, seed=1)
    rank.step(ConnectorMeta(captures=[capture(donor, range(20))]))
    rank.settle()
    expected = rank.view.read(range(20), 0, 304)
    span = Span(donor_id="d1", donor_start=0, target_start=0, length=304, kind=SpanKind.PREFIX)
    seen = []

    def forward():
        seen.append(rank.view.read(range(30, 50), 0, 304))

    rank.step(loading(donor, (span,), list(range(30, 50)), start=0, end=304), forward)
    rank.settle()
    assert torch.equal(seen[0], expected)
    rank.side.close()
