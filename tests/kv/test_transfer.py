"""Copying spans: the torch path against a token-by-token loop in float64, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.errors import PlanError
from semblend.kv.layout import PagedLayout, by_slot
from semblend.kv.rotary_spec import Pairing, RotarySpec
from semblend.kv.rotary_table import RotaryTable
from semblend.kv.span_batch import SpanCopy
from semblend.kv.transfer import copy_spans
from tests.kv import fp8_case
from tests.kv.span_cases import LIMITS, SpanCase, make_case
from tests.oracles.rotary_float64 import copy_token_by_token


@st.composite
def span_cases(draw: st.DrawFn) -> SpanCase:
    """Cases over every type, pairing and head shape."""
    rotary_dim = 2 * draw(st.integers(1, 5))
    return make_case(
        seed=draw(st.integers(0, 2**32 - 1)),
        dtype=draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16])),
        pairing=draw(st.sampled_from(list(Pairing))),
        head_dim=rotary_dim + draw(st.integers(0, 4)),
        rotary_dim=rotary_dim,
        kv_heads=draw(st.integers(1, 3)),
        layers=draw(st.integers(1, 3)),
        page_size=draw(st.sampled_from([1, 4, 16])),
        lengths=draw(st.lists(st.integers(1, 24), min_size=1, max_size=5)),
    )


def expected(case: SpanCase, pool: torch.Tensor) -> torch.Tensor:
    result = by_slot(pool).double()
    for copy in case.copies:
        steps = range(len(copy))
        moves = [
            (
                int(copy.source_slots[at]),
                int(copy.target_slots[at]),
                copy.source_start + at,
                copy.target_start + at,
            )
            for at in steps
        ]
        result = copy_token_by_token(
            result,
            by_slot(copy.source),
            moves,
            case.table.cos,
            case.table.sin,
            interleaved=case.table.pairing is Pairing.INTERLEAVED,
        )
    return result


@given(span_cases())
def test_every_span_arrives_as_a_loop_over_tokens_says(case: SpanCase) -> None:
    pool = case.pool.clone()
    copied = copy_spans(pool, case.copies, case.table)
    assert copied == sum(len(copy) for copy in case.copies)
    difference = (by_slot(pool).double() - expected(case, case.pool)).abs().max()
    assert float(difference) <= LIMITS[pool.dtype]


@given(span_cases())
def test_values_and_spans_that_stay_are_copied_bit_for_bit(case: SpanCase) -> None:
    pool = case.pool.clone()
    copy_spans(pool, case.copies, case.table)
    bits = {2: torch.int16, 4: torch.int32}[pool.dtype.itemsize]
    for copy in case.copies:
        got = by_slot(pool)[:, :, torch.from_numpy(copy.target_slots)].view(bits)
        want = by_slot(copy.source)[:, :, torch.from_numpy(copy.source_slots)].view(bits)
        assert torch.equal(got[:, 1], want[:, 1])
        if copy.source_start == copy.target_start:
            assert torch.equal(got[:, 0], want[:, 0])


@given(span_cases())
def test_slots_of_nobody_are_left_alone(case: SpanCase) -> None:
    pool = case.pool.clone()
    copy_spans(pool, case.copies, case.table)
    untouched = np.ones(by_slot(pool).shape[2], dtype=bool)
    for copy in case.copies:
        untouched[copy.target_slots] = False
    keep = torch.from_numpy(np.flatnonzero(untouched))
    assert torch.equal(by_slot(pool)[:, :, keep], by_slot(case.pool)[:, :, keep])


@given(span_cases(), st.randoms(use_true_random=False))
def test_the_order_of_spans_changes_nothing(case: SpanCase, random) -> None:
    shuffled = list(case.copies)
    random.shuffle(shuffled)
    one, other = case.pool.clone(), case.pool.clone()
    copy_spans(one, case.copies, case.table)
    copy_spans(other, shuffled, case.table)
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("scattered", [False, True], ids=["one run", "scattered pages"])
def test_long_spans_over_several_tiles_arrive(dtype, scattered) -> None:
    layout = PagedLayout(layers=2, pages=300, page_size=8, kv_heads=2, head_dim=8)
    table = RotaryTable.from_spec(
        RotarySpec(head_dim=8, rotary_dim=4, theta=1e4, max_positions=4096)
    )
    generator = torch.Generator().manual_seed(1)
    segment = torch.randn(2, 2, 2200, 2, 8, generator=generator).to(dtype)
    pages = np.random.default_rng(0).permutation(300) if scattered else np.arange(300)
    slots = layout.token_slots(pages, 37, 2237)
    pool = layout.allocate(dtype=dtype, device="cpu")
    copy = SpanCopy(
        source=segment,
        source_slots=np.arange(2200),
        target_slots=slots,
        source_start=5,
        target_start=37,
    )
    copy_spans(pool, [copy], table)
    got = by_slot(pool)[:, :, torch.from_numpy(slots)]
    positions = torch.arange(2200)
    want = table.rerotate(segment[:, 0], positions + 5, positions + 37)
    torch.testing.assert_close(got[:, 0], want, rtol=0, atol=LIMITS[dtype])
    assert torch.equal(got[:, 1], segment[:, 1])


def test_no_spans_and_empty_spans_copy_nothing() -> None:
    case = small_case()
    empty = replace(case.copies[0], source_slots=np.arange(0), target_slots=np.arange(0))
    pool = case.pool.clone()
    assert copy_spans(pool, [], case.table) == 0
    assert copy_spans(pool, [empty], case.table) == 0
    assert torch.equal(pool, case.pool)


def small_case() -> SpanCase:
    layout = PagedLayout(layers=2, pages=4, page_size=4, kv_heads=1, head_dim=8)
    table = RotaryTable.from_spec(RotarySpec(head_dim=8, rotary_dim=8, theta=1e4, max_positions=32))
    copy = SpanCopy(
        source=torch.randn(2, 2, 6, 1, 8),
        source_slots=np.arange(1, 5),
        target_slots=layout.token_slots([2, 0], 2, 6),
        source_start=1,
        target_start=2,
    )
    return SpanCase(pool=torch.randn(layout.shape), copies=(copy,), table=table)


def test_slots_written_twice_are_refused_and_nothing_is_written() -> None:
    case = small_case()
    (copy,) = case.copies
    twice = replace(copy, target_slots=np.array([8, 9, 9, 10]))
    elsewhere = replace(copy, source=torch.randn(2, 2, 9, 1, 8))
    pool = case.pool.clone()
    for copies in ([twice], [copy, copy], [copy, elsewhere]):
        with pytest.raises(PlanError, match="written twice"):
            copy_spans(pool, copies, case.table)
    assert torch.equal(pool, case.pool)


def test_a_pool_may_be_its_own_source_unless_a_slot_is_read_and_written() -> None:
    case = small_case()
    pool = case.pool.clone()
    apart = SpanCopy(
        source=pool,
        source_slots=np.arange(0, 4),
        target_slots=np.arange(4, 8),
        source_start=3,
        target_start=9,
    )
    copy_spans(pool, [apart], case.table)
    want = case.table.rerotate(
        by_slot(case.pool)[:, 0, :4], torch.arange(3, 7), torch.arange(9, 13)
    )
    torch.testing.assert_close(by_slot(pool)[:, 0, 4:8], want)
    overlapping = replace(apart, target_slots=np.arange(2, 6))
    with pytest.raises(PlanError, match="read and written"):
        copy_spans(pool, [overlapping], case.table)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"source_slots": np.array([0, 1, 2, 6])}, r"source slots in \[0, 6\)"),
        ({"source_slots": np.array([0, 1, 2, -1])}, "source slots"),
        ({"target_slots": np.array([0, 1, 2, 16])}, r"target slots in \[0, 16\)"),
        ({"source_start": 29}, "position 32"),
        ({"target_start": 40}, "position 43"),
        ({"source": torch.randn(3, 2, 6, 1, 8)}, "does not fit a pool"),
        ({"source": torch.randn(2, 2, 6, 1, 16)}, "does not fit a pool"),
        ({"source": torch.randn(2, 2, 6, 1, 8).half()}, "does not fit a pool"),
        ({"source": torch.randn(2, 3, 6, 1, 8)}, "expected a pool"),
        ({"source": torch.randn(2, 2, 8, 2, 6).transpose(2, 4)[..., :8]}, "contiguous tokens"),
    ],
)
def test_what_a_kernel_would_take_on_trust_is_checked_first(changes, named) -> None:
    case = small_case()
    pool = case.pool.clone()
    with pytest.raises(PlanError, match=named):
        copy_spans(pool, [replace(case.copies[0], **changes)], case.table)
    assert torch.equal(pool, case.pool)


def test_a_span_copy_states_as_many_rows_as_slots_and_starts_in_the_prompt() -> None:
    (copy,) = small_case().copies
    with pytest.raises(PlanError, match="as many source as target"):
        replace(copy, target_slots=np.arange(3))
    with pytest.raises(PlanError, match="source_start=-1"):
        replace(copy, source_start=-1)


def test_a_block_table_that_is_too_short_or_wrong_is_refused() -> None:
    layout = PagedLayout(layers=1, pages=4, page_size=4, kv_heads=1, head_dim=2)
    assert layout.token_slots([3, 1], 2, 7).tolist() == [14, 15, 4, 5, 6]
    assert layout.token_bytes(torch.bfloat16) == 8
    assert (
        layout.pool_bytes(torch.bfloat16)
        == layout.allocate(dtype=torch.bfloat16, device="cpu").nbytes
    )
    for pages, start, end in (([3, 1], 2, 9), ([4], 0, 1), ([-1], 0, 1), ([1], 3, 2)):
        with pytest.raises(PlanError):
            layout.token_slots(pages, start, end)
    with pytest.raises(PlanError, match="at least 1"):
        PagedLayout(layers=0, pages=4, page_size=4, kv_heads=1, head_dim=2)


def test_fp8_that_stays_keeps_its_bits_and_what_does_not_fit_is_clipped_and_counted() -> None:
    fp8_case.check(backends=("torch",))
