"""Cold/warm pairs of a case, and the figures derived from them."""

from __future__ import annotations

import statistics as standard
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.suite.figures import Figures
from sembench import statistics
from sembench.comparing.paired import HIT_TOKENS
from sembench.live.reply import Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The same prompt sent to empty and to filled caches."""

    cold: Reply
    warm: Reply

    @property
    def speedup(self) -> float:
        """Cold over warm time to first token."""
        return (self.cold.ttft_ms or 0.0) / (self.warm.ttft_ms or 1.0)

    @property
    def confirmed_tokens(self) -> int | None:
        """All reuse the backend reports."""
        return self.warm.cached_tokens

    @property
    def hit(self) -> bool:
        """Whether the backend confirms enough reuse to call it a hit."""
        return (self.confirmed_tokens or 0) >= HIT_TOKENS


def confirmed(pairs: Sequence[Pair]) -> bool | None:
    """Whether the backend confirmed reuse in any pair; None if it never reports reuse."""
    said = [pair.confirmed_tokens for pair in pairs if pair.confirmed_tokens is not None]
    return any(said) if said else None


def context_tokens(replies: Sequence[Reply]) -> float | None:
    """Median prompt length as the backend counts it."""
    lengths = [reply.prompt_tokens for reply in replies if reply.prompt_tokens is not None]
    return float(standard.median(lengths)) if lengths else None


def add_time(
    figures: Figures,
    case: str,
    metric: str,
    replies: Sequence[Reply],
    *,
    backend_confirmed: bool | None,
) -> None:
    """Add a median time to first token."""
    times = [reply.ttft_ms for reply in replies if reply.ttft_ms is not None]
    figures.add(
        case,
        metric,
        statistics.median(times) if times else None,
        "ms",
        context_tokens=context_tokens(replies),
        samples=len(times),
        backend_confirmed=backend_confirmed,
    )


def add_speedup(
    figures: Figures,
    case: str,
    metric: str,
    pairs: Sequence[Pair],
    *,
    at_least: float | None = None,
) -> None:
    """Add a median of paired ratios with its interval."""
    interval = statistics.bootstrap_median([pair.speedup for pair in pairs])
    figures.add(
        case,
        metric,
        None if interval is None else interval.value,
        "x",
        context_tokens=context_tokens([pair.warm for pair in pairs]),
        samples=len(pairs),
        backend_confirmed=confirmed(pairs),
        interval=None if interval is None else (interval.low, interval.high),
        at_least=at_least,
    )


def add_reuse(figures: Figures, case: str, pairs: Sequence[Pair]) -> None:
    """Hit rates, and the shares of prompts that were exact, semantic, and found but not loaded.

    `hit_rate` counts both kinds of reuse. A figure that the backend says nothing of is missing.
    """
    known = [pair for pair in pairs if pair.confirmed_tokens is not None]
    shared: dict[str, Any] = {
        "context_tokens": context_tokens([pair.warm for pair in pairs]),
        "samples": len(known),
        "backend_confirmed": confirmed(pairs),
    }
    figures.add(
        case,
        "hit_rate",
        sum(pair.hit for pair in known) / len(known) if known else None,
        "",
        **shared,
    )
    for metric, hits in (
        ("exact_hit_rate", [pair.warm.exact_tokens for pair in known]),
        ("semantic_hit_rate", [pair.warm.reused_tokens for pair in known]),
    ):
        told = [tokens >= HIT_TOKENS for tokens in hits if tokens is not None]
        figures.add(case, metric, sum(told) / len(told) if told else None, "", **shared)
    for metric, counts in (
        ("exact_token_share", [pair.warm.exact_tokens for pair in known]),
        ("semantic_token_share", [pair.warm.reused_tokens for pair in known]),
        ("candidate_token_share", [pair.warm.candidate_tokens for pair in known]),
    ):
        total = sum(pair.warm.prompt_tokens or 0 for pair in known)
        told = [count for count in counts if count is not None]
        figures.add(
            case,
            metric,
            sum(told) / total if told and total else None,
            "",
            **shared,
        )
