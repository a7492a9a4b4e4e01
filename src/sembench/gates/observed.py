"""The gated metrics, recomputed from a result's rows and the engines' own summaries.

The aggregate stored in a file is not trusted. It is recomputed, and a file of the current
version whose aggregate differs fails (`aggregate_consistent`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sembench import metrics
from sembench.comparing import paired
from sembench.comparing.calibration import Calibration
from sembench.engine_events import EngineSummary
from sembench.live.identity import our_id_in
from sembench.live.prometheus import semantic_tokens as counted_tokens
from sembench.results import RESULT_VERSION, RequestRow, Result

Observed = dict[str, float | bool | None]
_CHECKED = (
    "requests",
    "exact_block_hit_rate",
    "backend_confirmed_block_rate",
    "semantic_placement_rate_by_request",
    "quality_pass_rate",
    "negative_control_backend_confirmed_rate",
)


def observe(
    result: Result, summaries: Sequence[EngineSummary], calibration: Calibration | None
) -> Observed:
    """Every gated metric; None if the result lacks it."""
    rows = result.requests
    aggregate = metrics.aggregate(rows) if rows else dict(result.aggregate)
    pairs = paired.summarise(rows)
    negatives = [row for row in rows if row.negative_control]
    return {
        "requests": len(rows) or _number(aggregate.get("requests")),
        "request_error_rate": _rate([row.error is not None for row in rows]),
        "quality_pass_rate": _number(aggregate.get("quality_pass_rate")),
        "semantic_placement_rate": _number(aggregate.get("semantic_placement_rate_by_request")),
        "backend_confirmed_block_rate": _number(aggregate.get("backend_confirmed_block_rate")),
        "negative_control_requests": len(negatives),
        "negative_control_confirmed_rate": _negative_confirmed_rate(negatives, result),
        "negative_control_semantic_placement_rate": _number(
            aggregate.get("negative_control_semantic_placement_rate")
        )
        if negatives
        else None,
        **_engine(summaries),
        "blended_ttft_speedup": pairs["blended_ttft_speedup_median"],
        "negative_control_speedup_deviation": pairs["negative_control_speedup_deviation"],
        "donor_fact_leak_rate": pairs["donor_fact_leak_rate"],
        "contamination_checks": pairs["contamination_checks"],
        "propagation_contamination_rate": pairs["propagation_contamination_rate"],
        "unconfirmed_claim_rate": _unconfirmed_claims(result, summaries),
        **_against_noise(pairs["warm_vs_cold_rouge_l_mean"], calibration),
        "aggregate_consistent": _consistent(result.aggregate, aggregate)
        if rows and result.result_version == RESULT_VERSION
        else None,
    }


def _engine(summaries: Sequence[EngineSummary]) -> Observed:
    if not summaries:
        names = ("materialization_events", "materialized_tokens", "materialized_units")
        return {**dict.fromkeys(names), "materialized_reuse": None, "engine_errors": None}
    return {
        "materialization_events": sum(summary.materialization_events for summary in summaries),
        "materialized_tokens": sum(summary.materialized_tokens for summary in summaries),
        "materialized_units": sum(summary.materialized_units for summary in summaries),
        "materialized_reuse": any(summary.materialized_semantic_kv_reuse for summary in summaries),
        "engine_errors": sum(summary.error_count for summary in summaries),
    }


def _negative_confirmed_rate(rows: Sequence[RequestRow], result: Result) -> float | None:
    """Unexplained reused blocks on negative controls, over their total blocks.

    If a backend distinguishes exact from semantic reuse, an exact hit on a shared
    template or instruction is not a false claim, as far as the manifest's own exact
    blocks (and the template's tokens) explain it. If it does not, every block it
    reports counts.
    """
    confirmed = [row for row in rows if row.backend_confirmed_blocks is not None]
    if not confirmed:
        return None
    size = result.config.get("block_size")
    blocks = 0
    for row in rows:
        semantic = paired.semantic_tokens(row)
        if semantic is None or row.exact_confirmed_tokens is None or not isinstance(size, int):
            blocks += row.backend_confirmed_blocks or 0
            continue
        template = max(0, (row.engine_prompt_tokens or row.prompt_tokens) - row.prompt_tokens)
        explained = row.exact_tokens + template + size
        unexplained = max(0, row.exact_confirmed_tokens - explained)
        blocks += math.ceil((semantic + unexplained) / size)
    return metrics.rate(blocks, sum(row.total_blocks for row in rows))


def _unconfirmed_claims(result: Result, summaries: Sequence[EngineSummary]) -> float | None:
    """The share of claimed semantic tokens that no engine log, audit or counter confirms.

    Compared per request if the engine names requests. Otherwise compared by totals, which
    include what donors reused and therefore confirm less precisely. None if responses
    claim nothing or there is no independent source.
    """
    claims = [row for row in result.requests if row.claimed_reuse_tokens is not None]
    claimed = sum(row.claimed_reuse_tokens or 0 for row in claims)
    if not claims:
        return None
    by_request: Counter[str] = Counter()
    for summary in summaries:
        for engine_id, tokens in summary.materialized_tokens_by_request.items():
            by_request[our_id_in(engine_id) or engine_id] += tokens
    totals = [sum(summary.materialized_tokens for summary in summaries)] if summaries else []
    prometheus = (result.engine or {}).get("prometheus") or {}
    counted = counted_tokens(prometheus.get("semantics") or {})
    audited = any(row.audit_materialized_tokens is not None for row in claims)
    if by_request or audited:
        missing = sum(
            max(0, (row.claimed_reuse_tokens or 0) - _confirmed(row, by_request)) for row in claims
        )
        return metrics.rate(missing, claimed)
    if counted is not None:
        totals.append(round(counted))
    if not totals:
        return None
    return metrics.rate(max(0, claimed - max(totals)), claimed)


def _confirmed(row: RequestRow, by_request: Mapping[str, int]) -> int:
    return max(row.audit_materialized_tokens or 0, by_request.get(row.request_id or "", 0))


def _against_noise(rouge: float | None, calibration: Calibration | None) -> Observed:
    """Warm-vs-cold relative to cold-vs-cold: lower is damage, far higher is a cached answer."""
    if rouge is None:
        return {"warm_vs_cold_rouge": None, "warm_vs_cold_rouge_drop": None, "rouge_ceiling": None}
    floor = 1.0 if calibration is None else calibration.rouge_mean
    ceiling = None if calibration is None else min(1.0, calibration.rouge_high + 0.10)
    return {
        "warm_vs_cold_rouge": rouge,
        "warm_vs_cold_rouge_drop": floor - rouge,
        "rouge_ceiling": ceiling,
    }


def _consistent(carried: Mapping[str, Any], computed: Mapping[str, Any]) -> bool:
    for name in _CHECKED:
        stated, found = _number(carried.get(name)), _number(computed.get(name))
        if name in carried and (stated is None) != (found is None):
            return False
        if stated is not None and found is not None and abs(stated - found) > 1e-6:
            return False
    return True


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value


def _rate(flags: Sequence[bool]) -> float | None:
    return sum(flags) / len(flags) if flags else None
