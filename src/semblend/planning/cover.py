"""Chooses spans: the best cover of the target by verified runs of all donors.

This is weighted interval scheduling in which overlaps are split, not dropped. What a token saves
depends only on its position, so if two runs overlap, the later one starts where the earlier one
ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semblend.discovery.runs import DonorRun
from semblend.planning.cost import CostModel


def best_cover(
    runs: Sequence[DonorRun], *, cost: CostModel, start: int, end: int, min_span_tokens: int
) -> list[DonorRun]:
    """The parts of `runs` inside [start, end) that save the most, minus a fixed cost each.

    Returns disjoint runs in target order. Runs shorter than `min_span_tokens` are ignored, but part
    of a longer run may be shorter.
    """
    candidates = _undominated(runs, start, end, min_span_tokens)
    chosen = _choose(candidates, cost)
    return _split_overlaps([candidates[index] for index in chosen], min_span_tokens)


def _undominated(
    runs: Sequence[DonorRun], start: int, end: int, min_span_tokens: int
) -> list[DonorRun]:
    """Clip runs to [start, end) and drop those inside another. Starts and ends then both rise.

    Of equal runs the one that moves least is kept.
    """
    clipped = (_clip(run, start, end) for run in runs)
    ordered = sorted(
        (run for run in clipped if run is not None and run.length >= min_span_tokens),
        key=lambda run: (run.target_start, -run.length, abs(run.donor_start - run.target_start)),
    )
    kept: list[DonorRun] = []
    for run in ordered:
        if not kept or run.target_end > kept[-1].target_end:
            kept.append(run)
    return kept


def _choose(candidates: list[DonorRun], cost: CostModel) -> list[int]:
    """Indices of the best selection. best[i] is the value of a cover that ends with run i."""
    best: list[float] = []
    before: list[int] = []
    # leader[i]: the best of best[0..i] and its index, for runs that i does not overlap.
    leader: list[tuple[float, int]] = []
    for index, run in enumerate(candidates):
        value, previous = 0.0, -1
        other = index - 1
        gained = cost.gain(run.target_start, run.target_end)
        score = gained
        while other >= 0 and candidates[other].target_end > run.target_start:
            joined = best[other] + cost.gain(candidates[other].target_end, run.target_end)
            if joined > score:
                score, previous = joined, other
            other -= 1
        if other >= 0:
            value, ahead = leader[other]
            if value > 0 and value + gained > score:
                score, previous = value + gained, ahead
        best.append(score - cost.span_fixed)
        before.append(previous)
        leader.append(max((best[index], index), leader[index - 1] if index else (0.0, -1)))
    if not leader or leader[-1][0] <= 0:
        return []
    path: list[int] = []
    at = leader[-1][1]
    while at >= 0:
        path.append(at)
        at = before[at]
    return path[::-1]


def _split_overlaps(runs: list[DonorRun], min_span_tokens: int) -> list[DonorRun]:
    """Cut each run where the next starts: at its end, or earlier to keep the next one intact."""
    spans: list[DonorRun] = []
    for run in runs:
        last = spans[-1] if spans else None
        if last is not None and last.target_end > run.target_start:
            earliest = max(run.target_start, last.target_start + min_span_tokens)
            seam = min(last.target_end, max(earliest, run.target_end - min_span_tokens))
            spans[-1] = replace(last, length=seam - last.target_start)
            clipped = _clip(run, seam, run.target_end)
            if clipped is not None:
                spans.append(clipped)
        else:
            spans.append(run)
    return spans


def _clip(run: DonorRun, start: int, end: int) -> DonorRun | None:
    low, high = max(run.target_start, start), min(run.target_end, end)
    if low >= high:
        return None
    return replace(
        run,
        donor_start=run.donor_start + low - run.target_start,
        target_start=low,
        length=high - low,
    )
