"""The part of `vllm_gpu` that looks for prompts which reuse makes slower.

Prompts of several lengths, shares of known text and numbers of spans. Each point is asked cold and
with reuse in turn, and the median of the pairs' ratios counts. Whether the engine reuses or
declines is its own decision: it must not be slower either way.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from semblend.bench.benchmark_report import BenchmarkReport

AT_MOST = 1.02
_LEAST_SPAN = 32
_GAP = 4


class Asked(Protocol):
    """An engine that answers one prompt at a time."""

    def text(self, tokens: int) -> list[int]: ...

    def ask(
        self, tokens: list[int], hints: dict[str, Any], *, clock: Callable[[], float]
    ) -> tuple[float, float, dict[str, Any]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One kind of prompt."""

    tokens: int
    share: float
    spans: int

    @property
    def name(self) -> str:
        """How it is called in the report."""
        plural = "s" if self.spans > 1 else ""
        return f"{self.tokens} tokens, {self.share:.0%} known in {self.spans} span{plural}"

    @property
    def is_possible(self) -> bool:
        """Whether spans are long enough to be found, with something new between them."""
        new = self.tokens * (1 - self.share)
        return self.tokens * self.share / self.spans >= _LEAST_SPAN and new > _GAP * self.spans


def points(lengths: list[int], shares: list[float], spans: list[int]) -> Iterator[Point]:
    """All points that can be."""
    for tokens in lengths:
        for share in shares:
            for count in spans:
                point = Point(tokens=tokens, share=share, spans=count)
                if point.is_possible:
                    yield point


def never_slower(
    bench: Asked,
    report: BenchmarkReport,
    chosen: list[Point],
    *,
    policy: str,
    pairs: int,
    processor: bool,
) -> None:
    """Ask at each point; with `processor`, processor time counts, for machines that others use."""
    clock = time.process_time if processor else time.perf_counter
    unit = "of cold's processor time" if processor else "of cold"
    cold = {"reuse": False, "capture": False}
    warm = {"policy": policy, "capture": False}
    outcomes: Counter[str] = Counter()
    worst = 0.0
    for point in chosen:
        pieces = [
            bench.text(round(point.tokens * point.share / point.spans)) for _ in range(point.spans)
        ]
        donor = [token for piece in pieces for token in (*bench.text(_GAP), *piece)]
        bench.ask([*bench.text(64), *donor, *bench.text(64)], {"reuse": False}, clock=clock)
        ratios: list[float] = []
        for number in range(pairs + 1):
            base = bench.ask(_prompt(bench, point, pieces), cold, clock=clock)[0]
            took, _, said = bench.ask(_prompt(bench, point, pieces), warm, clock=clock)
            if number:  # kernels of a shape compile on first use
                ratios.append(took / base)
        outcome = str(said.get("reason") or said.get("outcome"))
        outcomes[outcome] += 1
        ratio = float(np.median(ratios))
        worst = max(worst, ratio)
        report.add(point.name, f"first token, {policy}, {outcome}", ratio, unit, at_most=AT_MOST)
    case = f"{len(chosen)} kinds of prompts, {policy}"
    report.add(case, "worst first token", worst, unit, at_most=AT_MOST)
    for outcome, count in sorted(outcomes.items()):
        report.add(case, outcome, count, "kinds")


def _prompt(bench: Asked, point: Point, pieces: list[list[int]]) -> list[int]:
    """The pieces backwards, each after new text."""
    known = sum(map(len, pieces))
    gap = (point.tokens - known) // (len(pieces) + 1)
    prompt = [token for piece in reversed(pieces) for token in (*bench.text(gap), *piece)]
    return [*prompt, *bench.text(max(1, point.tokens - len(prompt)))]
