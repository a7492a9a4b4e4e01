"""The metrics, by name and formula (docs/metrics.md explains each with a worked example).

Rules for all of them:

- a block is a full block: ``total_blocks = prompt_tokens // block_size``;
- what was not measured is null, and a rate with a zero denominator is 0.0. Rates over
  negative controls are therefore 0.0 if there are none, so check
  ``negative_control_requests`` before gating on them;
- aggregate rates pool blocks over *all* requests, including failed ones: a request
  without a plan or a confirmation contributes its blocks and no hits. A rate is null
  only if no request carries the measurement.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np

from sembench.blocks import (
    BoolArray,
    PlanBlocks,
    ProposedSpan,
    TokenArray,
    block_hash,
    block_strip,
    exact_block_mask,
    plan_blocks,
)
from sembench.results import RequestRow

__all__ = [
    "SEMANTIC_PLACEMENT",
    "Aggregate",
    "BoolArray",
    "PlanBlocks",
    "ProposedSpan",
    "TokenArray",
    "aggregate",
    "block_hash",
    "block_strip",
    "by_transform",
    "confirmed_fields",
    "exact_block_mask",
    "exact_fields",
    "plan_blocks",
    "plan_fields",
    "rate",
]

SEMANTIC_PLACEMENT = "semantic_placement"
"""The `route_outcome` of a request routed to a donor by meaning."""


def rate(count: int | float, total: int | float) -> float:
    """`count` / `total`, or 0.0 if `total` is zero."""
    return count / total if total else 0.0


def exact_fields(prompt_tokens: int, exact: BoolArray, size: int) -> dict[str, Any]:
    """Row fields that answer the exact-block question."""
    blocks = int(exact.sum())
    return {
        "prompt_tokens": prompt_tokens,
        "total_blocks": prompt_tokens // size,
        "exact_blocks": blocks,
        "exact_tokens": blocks * size,
        "exact_block_hit_rate": rate(blocks, prompt_tokens // size),
    }


def plan_fields(exact: BoolArray, plan: PlanBlocks, size: int) -> dict[str, Any]:
    """Row fields that answer the planner question."""
    row: dict[str, Any] = {"planned_mismatched_tokens": plan.mismatched_tokens}
    exact_rate = rate(int(exact.sum()), len(exact))
    for name, mask in (("candidate", plan.candidate), ("eligible", plan.eligible)):
        blocks = int(mask.sum())
        row[f"semantic_{name}_blocks"] = blocks
        row[f"semantic_{name}_tokens"] = blocks * size
        row[f"semantic_{name}_block_rate"] = rate(blocks, len(exact))
        row[f"semantic_{name}_lift"] = rate(blocks, len(exact)) - exact_rate
    return row


def confirmed_fields(
    cached_tokens: int | None, *, total_blocks: int, exact_block_hit_rate: float, size: int
) -> dict[str, Any]:
    """Row fields that answer the backend question; all null if the backend reported nothing."""
    if cached_tokens is None:
        return {}
    blocks = cached_tokens // size
    confirmed = rate(blocks, total_blocks)
    return {
        "cached_tokens": cached_tokens,
        "backend_confirmed_blocks": blocks,
        "backend_confirmed_tokens": blocks * size,
        "backend_confirmed_block_rate": confirmed,
        "backend_confirmed_lift": confirmed - exact_block_hit_rate,
    }


_POOLED = ("exact", "semantic_candidate", "semantic_eligible", "backend_confirmed")


class Aggregate:
    """Pools rows one by one. Keeps sums and times, never rows."""

    def __init__(self) -> None:
        self._requests = 0
        self._errors = 0
        self._prompt_tokens = 0
        self._total_blocks = 0
        self._blocks = dict.fromkeys(_POOLED, 0)
        self._tokens = dict.fromkeys(_POOLED, 0)
        self._measured = dict.fromkeys(_POOLED, 0)
        self._mismatched: int | None = None
        self._placed = self._routed = 0
        self._judged = self._passed = 0
        self._scores = array("d")
        self._times = {name: array("d") for name in ("ttft_ms", "latency_ms", "plan_ms")}
        self._negative: Aggregate | None = None

    def add(self, row: RequestRow) -> None:
        self._add(row)
        if row.negative_control:
            if self._negative is None:
                self._negative = Aggregate()
            self._negative._add(row)

    def _add(self, row: RequestRow) -> None:
        self._requests += 1
        self._errors += row.error is not None
        self._prompt_tokens += row.prompt_tokens
        self._total_blocks += row.total_blocks
        for name in _POOLED:
            blocks = getattr(row, f"{name}_blocks")
            if blocks is not None:
                self._measured[name] += 1
                self._blocks[name] += blocks
                self._tokens[name] += getattr(row, f"{name}_tokens") or 0
        if row.planned_mismatched_tokens is not None:
            self._mismatched = (self._mismatched or 0) + row.planned_mismatched_tokens
        self._routed += row.route_outcome is not None
        self._placed += row.route_outcome == SEMANTIC_PLACEMENT
        if row.quality_pass is not None:
            self._judged += 1
            self._passed += row.quality_pass
        if row.quality_score is not None:
            self._scores.append(row.quality_score)
        for name, values in self._times.items():
            value = getattr(row, name)
            if value is not None:
                values.append(value)

    def _pooled_rate(self, name: str) -> float | None:
        if self._requests and not self._measured[name]:
            return None
        return rate(self._blocks[name], self._total_blocks)

    def _lift(self, name: str) -> float | None:
        found, exact = self._pooled_rate(name), self._pooled_rate("exact")
        return None if found is None or exact is None else found - exact

    def _placement_rate(self) -> float | None:
        if self._requests and not self._routed:
            return None
        return rate(self._placed, self._requests)

    def to_dict(self) -> dict[str, Any]:
        """The aggregate keys of a result file."""
        pooled: dict[str, Any] = {}
        for name in _POOLED:
            measured = not self._requests or self._measured[name] > 0
            pooled[f"{name}_blocks"] = self._blocks[name] if measured else None
            pooled[f"{name}_tokens"] = self._tokens[name] if measured else None
            pooled[RATE_NAMES[name]] = self._pooled_rate(name)
            pooled[f"{name}_token_rate"] = (
                rate(self._tokens[name], self._prompt_tokens) if measured else None
            )
            if name != "exact":
                pooled[f"{name}_lift"] = self._lift(name)
        negative = self._negative or Aggregate()
        return {
            "requests": self._requests,
            "errors": self._errors,
            "prompt_tokens": self._prompt_tokens,
            "total_blocks": self._total_blocks,
            **pooled,
            "planned_mismatched_tokens": self._mismatched,
            "semantic_placement_requests": self._placed if self._routed else None,
            "semantic_placement_rate_by_request": self._placement_rate(),
            "quality_judged_requests": self._judged,
            "quality_pass_rate": rate(self._passed, self._judged) if self._judged else None,
            "quality_score_mean": float(np.mean(self._scores)) if self._scores else None,
            **self._time_summary(),
            "negative_control_requests": negative._requests,
            "negative_control_exact_block_hit_rate": negative._pooled_rate("exact"),
            "negative_control_semantic_candidate_rate": negative._pooled_rate("semantic_candidate"),
            "negative_control_semantic_eligible_rate": negative._pooled_rate("semantic_eligible"),
            "negative_control_backend_confirmed_rate": negative._pooled_rate("backend_confirmed"),
            "negative_control_semantic_placement_rate": negative._placement_rate(),
        }

    def _time_summary(self) -> dict[str, float | None]:
        summary: dict[str, float | None] = {}
        for name, values in self._times.items():
            numbers = np.asarray(values)
            for label, share in (("p50", 50), ("p90", 90), ("p99", 99)):
                summary[f"{name}_{label}"] = (
                    float(np.percentile(numbers, share)) if len(numbers) else None
                )
            summary[f"{name}_mean"] = float(numbers.mean()) if len(numbers) else None
        return summary


RATE_NAMES = {
    "exact": "exact_block_hit_rate",
    "semantic_candidate": "semantic_candidate_block_rate",
    "semantic_eligible": "semantic_eligible_block_rate",
    "backend_confirmed": "backend_confirmed_block_rate",
}


def aggregate(rows: Iterable[RequestRow]) -> dict[str, Any]:
    """The aggregate keys over `rows`."""
    pool = Aggregate()
    for row in rows:
        pool.add(row)
    return pool.to_dict()


def by_transform(rows: Iterable[RequestRow]) -> dict[str, dict[str, Any]]:
    """The aggregate keys of each transform."""
    pools: dict[str, Aggregate] = {}
    for row in rows:
        pools.setdefault(row.transform, Aggregate()).add(row)
    return {name: pools[name].to_dict() for name in sorted(pools)}
