"""The hook does not wait for the device: the scheduler runs ahead of it.

The device here is `meta`: it has no numbers, so whoever asks for one fails.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from semblend.core.plan import Hole, Plan, Span
from semblend.integration.sglang.exact_recompute import with_regions_computed
from semblend.integration.sglang.nested_pass import NestedPass
from semblend.integration.worker import pool_copies
from semblend.integration.worker.host_ranks import MeetingRanks
from semblend.integration.worker.pool_copies import DonorSlots, PoolCopies
from semblend.integration.worker.sequences import PassLimits, VirtualSequence, block_table
from semblend.kv import triton_copy
from semblend.kv.paged_kv import PagedKv
from semblend.kv.rotary_table import RotaryTable
from semblend.kv.span_batch import flattened

DEVICE = "meta"
LIMITS = PassLimits(sequences=8, tokens=64)


class Waited(Exception):
    """Something was copied to the device and waited for."""


class NoWaiting(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None) -> Any:
        options = kwargs or {}
        if function is torch.ops.aten._to_copy.default and not options.get("non_blocking"):
            there = options.get("device", args[0].device)
            if torch.device(there) != args[0].device:
                raise Waited(f"{function}")
        if function is torch.ops.aten.index.Tensor:
            indices = [index.device for index in args[1] if index is not None]
            if any(device != args[0].device for device in indices):
                raise Waited(f"{function}")
        return function(*args, **options)


@pytest.fixture
def hook(monkeypatch):
    made = torch.tensor

    def tensor(values, *args, device=None, **options):
        if device is not None and torch.device(device).type != "cpu":
            raise Waited("torch.tensor")
        return made(values, *args, **options)

    monkeypatch.setattr(torch, "tensor", tensor)
    with NoWaiting():
        yield


def make_batch() -> Any:
    return SimpleNamespace(
        reqs=[SimpleNamespace(full_untruncated_fill_ids=list(range(40))) for _ in range(2)],
        req_pool_indices_cpu=torch.tensor([3, 1]),
        req_pool_indices=torch.empty(2, dtype=torch.int64, device=DEVICE),
        prefix_lens=[30, 30],
        extend_lens=[10, 10],
        extend_logprob_start_lens=None,
        input_ids=torch.empty(20, dtype=torch.int64, device=DEVICE),
        out_cache_loc=torch.empty(20, dtype=torch.int64, device=DEVICE),
    )


def table() -> torch.Tensor:
    return torch.empty(4, 64, dtype=torch.int32, device=DEVICE)


def test_laying_holes_out_waits_for_nothing(hook):
    runner = SimpleNamespace(device=DEVICE, req_to_token_pool=SimpleNamespace(req_to_token=table()))
    tokens = np.arange(40, dtype=np.int32)
    sequences = [
        VirtualSequence(tokens=tokens, start=5, end=9 + n, blocks=block_table((row,)))
        for n, row in enumerate((3, 1))
    ]
    nested = NestedPass(runner, make_batch(), LIMITS, MeetingRanks())._batch_of(sequences)
    assert nested.input_ids.shape == nested.out_cache_loc.shape == (9,)
    assert nested.seq_lens_cpu.tolist() == [9, 10]
    assert nested.req_pool_indices_cpu.tolist() == [3, 1]
    on_device = (nested.input_ids, nested.seq_lens, nested.req_pool_indices, nested.orig_seq_lens)
    assert {tensor.device.type for tensor in on_device} == {DEVICE}


def test_having_regions_computed_waits_for_nothing(hook):
    whole = with_regions_computed(make_batch(), {1: Hole(10, 30)}, table())
    assert whole.input_ids.shape == whole.out_cache_loc.shape == (40,)
    assert (whole.prefix_lens, whole.extend_lens) == ([30, 10], [10, 30])


def test_placing_spans_reads_no_slot(hook, monkeypatch):
    """The scheduler's stream waits for the forward under way; whoever read from it would, too."""
    shape, rows = (64, 2, 16), torch.empty(128, 8, device=DEVICE)
    keys, values = ([torch.empty(shape, device=DEVICE) for _ in range(2)] for _ in range(2))
    pool, asked = PagedKv.of_slots(keys, values), []
    monkeypatch.setattr(
        pool_copies, "copy_spans", lambda *args, **kwargs: asked.append((args, kwargs)) or 20
    )
    span = Span(donor_id="d", donor_start=4, target_start=10, length=20)
    plan = Plan(namespace="n", prompt_tokens=40, spans=(span,), end=30, exact_tokens=6)
    tokens = np.arange(40, dtype=np.int32)
    donor = DonorSlots(tokens=tokens + 6, slots=torch.empty(24, dtype=torch.int64, device=DEVICE))
    slots = torch.empty(24, dtype=torch.int64, device=DEVICE)
    PoolCopies(pool, RotaryTable(cos=rows, sin=rows)).place(plan, tokens, {"d": donor}, slots)
    (((_, (copy,), _), options),) = asked
    assert copy.source_slots.tolist() == list(range(4, 24))
    assert copy.target_slots.tolist() == list(range(24 + 4, 24 + 24))
    assert options["lookup"].shape == (48,)
    batch = replace(flattened([copy]), lookup=options["lookup"])
    assert triton_copy.prepare(pool, batch).index.device.type == DEVICE


@pytest.mark.parametrize(
    "waits",
    [
        lambda: torch.tensor([1], device=DEVICE),
        lambda: torch.empty(1).to(DEVICE),
        lambda: torch.empty(3, device=DEVICE)[torch.tensor([0, 1])],
    ],
)
def test_what_waits_is_seen(hook, waits):
    with pytest.raises(Waited):
        waits()
