"""Check that more recompute never lowers quality: each policy's grid, item by item."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from semblend.planning.policies.base import known_policies
from semblend.quality.figures import cell_of
from semblend.quality.measure import Record

CHANCE = 0.05
"""Probability of any false alarm over all steps together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStep:
    """From one policy to a more expensive one of its family, on one workload."""

    workload: str
    cheap: str
    dear: str
    lost: int
    """Answers that agreed with cold under the cheaper policy but not under the other."""
    won: int
    p_value: float
    """Probability of losing that many or more if more recompute made no difference."""
    falls: bool
    """Whether that is too unlikely to be chance."""


def steps(records: Sequence[Record]) -> list[PolicyStep]:
    """All steps of all families but the random baseline, ordered by measured price.

    Agreement with cold is compared on the same items. A step falls if a one-sided sign test says
    so, corrected for the number of steps.
    """
    by_cell: dict[tuple[str, str], dict[str, Record]] = defaultdict(dict)
    for record in records:
        by_cell[cell_of(record), record.policy][record.case_id] = record
    found: list[tuple[str, str, str, int, int]] = []
    for workload in dict.fromkeys(cell for cell, _ in by_cell):
        for name, cls in known_policies().items():
            if name == "random":
                continue
            ladder = ["none", *(spec for spec in cls.grid if (workload, spec) in by_cell), "all"]
            measured = [spec for spec in ladder if (workload, spec) in by_cell]
            measured.sort(key=lambda spec: _computed(by_cell[workload, spec].values()))
            for cheap, dear in pairwise(measured):
                lost, won = _compare(by_cell[workload, cheap], by_cell[workload, dear])
                found.append((workload, cheap, dear, lost, won))
    limit = CHANCE / max(1, len(found))
    return [
        PolicyStep(
            workload=workload,
            cheap=cheap,
            dear=dear,
            lost=lost,
            won=won,
            p_value=sign_test(lost, won),
            falls=sign_test(lost, won) < limit,
        )
        for workload, cheap, dear, lost, won in found
    ]


def sign_test(lost: int, won: int) -> float:
    """Probability of at least `lost` losses among `lost + won` fair coin tosses.

    >>> sign_test(0, 5), sign_test(1, 0)
    (1.0, 0.5)
    """
    trials = lost + won
    return sum(math.comb(trials, k) for k in range(lost, trials + 1)) / (1 << trials)


def _compare(cheap: dict[str, Record], dear: dict[str, Record]) -> tuple[int, int]:
    both = cheap.keys() & dear.keys()
    lost = sum(cheap[case].same and not dear[case].same for case in both)
    won = sum(dear[case].same and not cheap[case].same for case in both)
    return lost, won


def _computed(records: Iterable[Record]) -> float:
    pairs = [(r.recomputed_tokens + r.declined_tokens, r.reusable_tokens) for r in records]
    return sum(done for done, _ in pairs) / max(1, sum(reusable for _, reusable in pairs))
