"""What SemBlend costs a prompt it cannot help: the lookup, and capture during the next request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from semblend.bench.benchmark_report import BenchmarkReport
from semblend.core.tokens import TokenArray
from semblend.quality.intervals import bootstrap_median
from semblend.terminal.progress import Advance, unseen

if TYPE_CHECKING:
    from semblend.engine.api import RequestReport
    from semblend.engine.engine import EmbeddedEngine

LIMIT = 0.01
"""Highest acceptable cost of a miss, as a share of cold TTFT, for 4,096 tokens and more."""
JUDGED_TOKENS = 4096

FirstToken = Callable[..., "RequestReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MissCost:
    """Adjacent pairs in one stream of unknown prompts. Times are in seconds."""

    off: list[float]
    """TTFT without lookup, after a prompt that is not captured."""
    on: list[float]
    """TTFT with lookup, while the previous prompt is copied out, stored and registered."""
    capture: list[float]
    """Processor time for copying out, storing and registering one prompt."""

    @property
    def shares(self) -> list[float]:
        """Extra time with SemBlend in each pair, as a share of the time without it."""
        return [on / off - 1.0 for on, off in zip(self.on, self.off, strict=True)]


def measure_miss(
    engine: EmbeddedEngine,
    first_token: FirstToken,
    length: int,
    *,
    pairs: int,
    seed: int,
    advance: Advance = unseen,
) -> MissCost:
    """Send unseen prompts back to back, each with SemBlend on or off.

    Capturing a prompt slows down the *next* request. Each request is therefore both a measurement
    and the background load of the one after it. Pairs alternate which arm goes first, so that a
    machine that warms up or slows down favours neither.
    """
    rng = np.random.default_rng((seed, length))
    vocabulary = engine.model.vocab_size
    size = min(length, engine.max_prompt_tokens)

    def text() -> TokenArray:
        return rng.integers(vocabulary // 8, vocabulary, size).astype(np.int32)

    modes = [mode for number in range(pairs) for mode in ((True, False), (False, True))[number % 2]]
    seconds: dict[bool, list[float]] = {True: [], False: []}
    capture: list[float] = []
    busy = engine.donors.busy_seconds
    first_token(engine, text(), reuse=False, donate=modes[0])
    for number in range(len(modes)):
        keep = modes[number + 1] if number + 1 < len(modes) else False
        report = first_token(engine, text(), reuse=modes[number], donate=keep)
        seconds[modes[number]].append(report.ttft_ms / 1e3)
        if modes[number]:
            capture.append(engine.donors.busy_seconds - busy)
        busy = engine.donors.busy_seconds
        advance(length)
    engine.donors.wait()
    engine.drop_donors()
    engine.flush_prefix_cache()
    return MissCost(off=seconds[False], on=seconds[True], capture=capture)


def add_miss_rows(
    report: BenchmarkReport, case: str, cost: MissCost, *, length: int, judged: bool
) -> None:
    """Add the median over pairs, its interval, and the cost of capture."""
    low, high = bootstrap_median(cost.shares)
    limit = LIMIT if judged and length >= JUDGED_TOKENS else None
    metric = f"miss: lookup and capture, share of cold, median of {len(cost.on)} pairs"
    report.add(case, metric, float(np.median(cost.shares)), "share", at_most=limit)
    report.add(case, "its 95 % interval, low", low, "share")
    report.add(case, "its 95 % interval, high", high, "share")
    report.add(case, "capture beside the next request, processor", _ms(cost.capture), "ms")


def _ms(seconds: list[float]) -> float:
    return float(np.median(seconds)) * 1e3
