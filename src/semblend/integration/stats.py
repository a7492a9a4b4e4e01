"""What adapters count, as plain numbers: the same names and sums in every engine's /metrics.

Hole tokens are computed, so they count as computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from semblend.core.ledger import Settlement
from semblend.core.outcomes import Outcome
from semblend.integration.counters import REUSABLE, TOKEN_SOURCES, tokens_by_source

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Bucket edges of duration histograms."""
PLAIN = {
    "donors_registered": "Prompts kept as donors.",
    "donors_dropped": "Donors that were evicted, lost or not stored.",
    "captures_skipped": "Prompts not kept because the capture queue was full.",
    "capture_bytes": "Bytes of K/V copied for donors, over all ranks.",
    "donors_shared": "Donors that other machines can fetch.",
    "donors_fetched": "Donors fetched from other machines.",
    "fetches_failed": "Donors of other machines that were worth fetching but did not arrive.",
    "shadow_samples": "Reused requests that were also computed cold.",
    "promoted_tokens": "Tokens of conversations computed exactly in idle steps.",
    "load_failures": "Loads that failed and were computed exactly.",
    "clipped_numbers": "Numbers of moved fp8 K that did not fit and were clipped, over all ranks.",
    "replayed_passes": "Forwards over holes replayed from graphs that the engine recorded.",
    "deferred_steps": "Steps that requests waited for the hole budget or for their plan.",
}
"""Counters without a label."""
TIMES = {
    "lookup": "Time to plan a prompt, in the scheduler.",
    "load": "Time to copy and rotate a step's spans, slowest rank.",
    "nested": "Time of a step's pass over holes, slowest rank.",
    "capture": "Time to copy one prompt's K/V, off the request path, slowest rank.",
}
"""Duration histograms."""
VALUES = {
    "shadow_divergence": (
        "Mean KL(cold || reused) of a shadow sample's compared tokens, nats.",
        (1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    ),
    "shadow_disagreement": (
        "Share of a shadow sample's compared tokens whose best token differs from cold.",
        (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0),
    ),
}
"""Other histograms: what they show, and their bucket edges."""

_SUMS = ("counts", "requests", "declines", "tokens")
_LISTS = ("seconds", "values")
_LATEST = "gauges"


@dataclass
class Stats:
    """What happened since the last read. Plain numbers and lists in `data`."""

    data: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    def reset(self) -> None:
        self.data = {part: {} for part in (*_SUMS, *_LISTS, _LATEST)}

    def is_empty(self) -> bool:
        return not any(self.data.values())

    def take(self) -> Stats:
        """What was counted since the last call."""
        taken = Stats(data=self.data)
        self.reset()
        return taken

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a plain counter."""
        _add(self.data["counts"], name, amount)

    def time(self, name: str, seconds: float) -> None:
        """Record one duration."""
        self.data["seconds"].setdefault(name, []).append(seconds)

    def value(self, name: str, value: float) -> None:
        """Record one figure that is not a duration."""
        self.data["values"].setdefault(name, []).append(value)

    def gauges(self, values: dict[str, float]) -> None:
        """Set the current gauge values."""
        self.data[_LATEST] = values

    def settled(self, settlement: Settlement) -> None:
        """Count one request, and its prompt tokens by where their K/V came from."""
        _add(self.data["requests"], settlement.outcome.value, 1)
        if settlement.reason is not None:
            _add(self.data["declines"], settlement.reason.value, 1)
        for source, amount in tokens_by_source(settlement).items():
            _add(self.data["tokens"], source, amount)

    def merged(self, other: dict[str, Any]) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for part in _SUMS:
            merged[part] = dict(self.data.get(part, {}))
            for name, amount in other.get(part, {}).items():
                _add(merged[part], name, amount)
        for part in _LISTS:
            mine, theirs = self.data.get(part, {}), other.get(part, {})
            merged[part] = {
                name: [*mine.get(name, ()), *theirs.get(name, ())] for name in {*mine, *theirs}
            }
        merged[_LATEST] = {**self.data.get(_LATEST, {}), **other.get(_LATEST, {})}
        return merged

    def figures(self) -> dict[str, int | float]:
        """A few figures for a periodic log line."""
        tokens = self.data["tokens"]
        prompt = sum(tokens.get(source, 0) for source in TOKEN_SOURCES)
        figures: dict[str, int | float] = {
            "SemBlend requests": sum(self.data["requests"].values()),
            "materialised": self.data["requests"].get(Outcome.MATERIALISED.value, 0),
            "reused tokens": tokens.get("reused", 0),
            "reused share": round(tokens.get("reused", 0) / prompt, 4) if prompt else 0.0,
            "reusable share": round(tokens.get(REUSABLE, 0) / prompt, 4) if prompt else 0.0,
        }
        for name, values in sorted(self.data["seconds"].items()):
            if values:
                figures[f"mean {name} ms"] = round(1e3 * sum(values) / len(values), 2)
        return figures


def _add(table: dict[str, int], name: str, amount: int) -> None:
    if amount:
        table[name] = table.get(name, 0) + amount
