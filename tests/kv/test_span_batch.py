"""Flat batches: runs collected together are the spans stated one by one, whole or in parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.errors import PlanError
from semblend.kv.span_batch import CopyRuns, SpanCopy, flattened
from semblend.kv.transfer import copy_spans
from tests.kv.span_cases import ROWS, small_case

ARRAYS = ("source_numbers", "source_slots", "target_slots", "source_positions", "target_positions")


@given(seed=st.integers(0, 2**32 - 1), lengths=st.lists(st.integers(1, 20), max_size=6))
def test_runs_are_the_spans_they_would_be_one_by_one(seed: int, lengths: list[int]) -> None:
    rng = np.random.default_rng(seed)
    sources = [torch.zeros(1, 2, ROWS, 1, 2) for _ in range(3)]
    slots = rng.permutation(200)
    runs, spans = CopyRuns(), []
    for length in lengths:
        source = sources[int(rng.integers(3))]
        row, source_start, target_start = rng.integers(0, ROWS - length, 3).tolist()
        runs.add(
            source, row=row, source_start=source_start, target_start=target_start, tokens=length
        )
        spans.append(
            SpanCopy(
                source=source,
                source_slots=np.arange(row, row + length),
                target_slots=slots[target_start : target_start + length],
                source_start=source_start,
                target_start=target_start,
            )
        )
    got, want = runs.batch(slots), flattened(spans)
    assert len(got) == sum(lengths)
    assert [id(source) for source in got.sources] == [id(source) for source in want.sources]
    for name in ARRAYS:
        assert np.array_equal(getattr(got, name), getattr(want, name)), name


@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    flags=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_sources_copied_in_turn_give_what_all_at_once_gives(
    seed: int, lengths: list[int], flags: list[bool]
) -> None:
    case = small_case(seed, lengths)
    at_once, in_turn = case.pool.clone(), case.pool.clone()
    copied = copy_spans(at_once, case.copies, case.table)
    batch = flattened([replace(copy, source=copy.source.clone()) for copy in case.copies])
    wanted = flags[: len(lengths)]
    parts = [batch.of_sources(wanted), batch.of_sources([not flag for flag in wanted])]
    assert sum(copy_spans(in_turn, part, case.table) for part in parts) == copied
    assert [len(part.sources) for part in parts] == [sum(wanted), len(wanted) - sum(wanted)]
    assert torch.equal(in_turn, at_once)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"row": -1}, "got -1"),
        ({"source_start": -2}, "got -2"),
        ({"target_start": -3}, "got -3"),
        ({"target_start": 7}, "expected 11 target slots, got 10"),
    ],
)
def test_runs_outside_the_prompt_are_refused(changes: dict[str, int], named: str) -> None:
    runs = CopyRuns()
    run = {"row": 0, "source_start": 0, "target_start": 6, "tokens": 4}
    runs.add(torch.zeros(1, 2, 8, 1, 2), **{**run, **changes})
    with pytest.raises(PlanError, match=named):
        runs.batch(np.arange(10))
