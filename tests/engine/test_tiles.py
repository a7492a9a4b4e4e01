"""Tiles: every row sees exactly its keys, once, however the pass was cut."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend.engine.cuda.tiles import RowRun, TilePlan, TileShape, plan_tiles

SHAPE = TileShape(rows=16, keys=8, warps=1, stages=1)


@st.composite
def row_runs(draw: st.DrawFn) -> list[RowRun]:
    """A few requests, each with a few holes in order."""
    runs, row = [], 0
    for number in range(draw(st.integers(1, 3))):
        positions: list[int] = []
        breaks: list[int] = []
        at = 0
        for _ in range(draw(st.integers(1, 5))):
            at += draw(st.integers(0, 90))
            length = draw(st.integers(1, 25))
            breaks.append(len(positions))
            positions += range(at, at + length)
            at += length + 1
        runs.append(
            RowRun(
                row=row,
                positions=np.array(positions),
                base=1000 * number,
                breaks=np.array(breaks),
            )
        )
        row += len(positions)
    return runs


def visits(plan: TilePlan, positions: dict[int, int]) -> dict[int, list[tuple[int, int]]]:
    """For each row the key ranges [begin, end) its items walk over, cut at its position."""
    seen: dict[int, list[tuple[int, int]]] = {}
    for row, rows, _base, begin, end, open_end, _part, _ in plan.items.tolist():
        assert begin <= open_end <= end
        for member in range(row, row + rows):
            # Keys before `open_end` are not masked: the row must really see them.
            assert open_end == begin or open_end <= positions[member] + 1
            seen.setdefault(member, []).append((begin, min(end, positions[member] + 1)))
    return seen


@given(
    runs=row_runs(),
    groups=st.sampled_from([1, 3, 7, 16]),
    splits=st.none() | st.integers(1, 9),
    processors=st.sampled_from([1, 8, 132]),
)
@settings(max_examples=150, deadline=None)
def test_every_row_sees_all_keys_up_to_its_own_and_no_other(
    runs: list[RowRun], groups: int, splits: int | None, processors: int
) -> None:
    plan = plan_tiles(runs, SHAPE, groups=groups, kv_heads=2, processors=processors, splits=splits)
    positions = {
        run.row + n: int(position) for run in runs for n, position in enumerate(run.positions)
    }
    seen = visits(plan, positions)
    assert seen.keys() == positions.keys()
    for row, ranges in seen.items():
        at = 0
        for begin, end in sorted(ranges):
            if begin >= end:
                continue
            assert begin == at
            at = end
        assert at == positions[row] + 1


@given(runs=row_runs(), splits=st.none() | st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_partial_results_are_written_once_and_merged_once(
    runs: list[RowRun], splits: int | None
) -> None:
    plan = plan_tiles(runs, SHAPE, groups=4, kv_heads=2, processors=132, splits=splits)
    written = sorted(part for part in plan.items[:, 6].tolist() if part >= 0)
    merged = sorted(
        part
        for _row, _rows, first, count in plan.merges.tolist()
        for part in range(first, first + count)
    )
    assert written == merged == list(range(plan.parts))
    lengths = plan.items[:, 4] - plan.items[:, 3]
    assert (np.diff(lengths) <= 0).all()  # the longest first


def test_tiles_cross_holes_only_where_that_is_cheaper() -> None:
    far = RowRun(
        row=0, positions=np.array([10, *range(3000, 3016)]), base=0, breaks=np.array([0, 1])
    )
    near = RowRun(
        row=0, positions=np.array([*range(10), *range(12, 18)]), base=0, breaks=np.array([0, 10])
    )
    apart = plan_tiles([far], SHAPE, groups=1, kv_heads=1, processors=1, splits=1)
    together = plan_tiles([near], SHAPE, groups=1, kv_heads=1, processors=1, splits=1)
    assert sorted(apart.items[:, 1].tolist()) == [1, 16]
    assert together.items[:, 1].tolist() == [16]
