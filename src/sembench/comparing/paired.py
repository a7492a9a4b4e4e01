"""The `paired` section of a result: cold and warm requests compared pair by pair.

The headline is the median of the paired ratios with its bootstrap interval. A pair with
a failed half, or whose cold half was not cold, is excluded and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sembench import statistics
from sembench.results import RequestRow

HIT_TOKENS = 64
"""Minimum confirmed semantic tokens for a request to count as a semantic hit."""


def semantic_tokens(row: RequestRow) -> int | None:
    """A row's semantic reuse from its best source: audit, external counter, backend metadata."""
    sources = (
        row.audit_materialized_tokens,
        row.external_confirmed_tokens,
        row.fuzzy_confirmed_tokens,
    )
    return next((tokens for tokens in sources if tokens is not None), None)


def exclusion(row: RequestRow) -> str | None:
    """Why a pair is excluded, or None if it counts."""
    if row.error is not None:
        return "warm_error"
    if row.cold_error is not None:
        return "cold_error"
    if row.cold_ttft_ms is None or row.ttft_ms is None:
        return "unpaired"
    if row.flush_contaminated:
        return "flush_contaminated"
    return None


def usable_pairs(rows: Iterable[RequestRow]) -> list[RequestRow]:
    """Rows whose two halves can be compared."""
    return [row for row in rows if exclusion(row) is None]


def summarise(rows: Sequence[RequestRow]) -> dict[str, Any]:
    """The `paired` section."""
    pairs = usable_pairs(rows)
    positive = [row for row in pairs if not row.negative_control]
    negative = [row for row in pairs if row.negative_control]
    hits = [row for row in positive if (semantic_tokens(row) or 0) >= HIT_TOKENS]
    misses = [row for row in positive if (semantic_tokens(row) or 0) < HIT_TOKENS]
    excluded = Counter(reason for row in rows if (reason := exclusion(row)) is not None)
    negatives = _speedup("negative_control_speedup", negative)
    middle = negatives["negative_control_speedup_median"]
    return {
        "pairs": len(pairs),
        "excluded_pairs": sum(excluded.values()),
        "excluded_reasons": dict(sorted(excluded.items())),
        "hit_token_threshold": HIT_TOKENS,
        "hit_pairs": len(hits),
        "miss_pairs": len(misses),
        "negative_control_pairs": len(negative),
        "cold_ttft_ms": _shape([row.cold_ttft_ms for row in pairs]),
        "warm_ttft_ms": _shape([row.ttft_ms for row in pairs]),
        **_speedup("blended_ttft_speedup", positive),
        **_speedup("hit_ttft_speedup", hits),
        **_speedup("miss_ttft_speedup", misses),
        **negatives,
        "negative_control_speedup_deviation": None if middle is None else abs(middle - 1.0),
        **_mean("warm_vs_cold_rouge_l", [row.warm_vs_cold_rouge_l for row in positive]),
        **_mean("hit_warm_vs_cold_rouge_l", [row.warm_vs_cold_rouge_l for row in hits]),
        **_mean("warm_vs_cold_kl", [row.warm_vs_cold_kl for row in positive]),
        "identical_answer_rate": _share(
            [
                row.output_text == row.cold_output_text
                for row in positive
                if row.output_text is not None and row.cold_output_text is not None
            ]
        ),
        "cold_quality_pass_rate": _share([row.cold_quality_pass for row in pairs]),
        "warm_quality_pass_rate": _share([row.quality_pass for row in pairs]),
        **integrity(rows),
        **audited(rows),
    }


def audited(rows: Sequence[RequestRow]) -> dict[str, Any]:
    """The engine's audit next to what the manifest expects; null if either is missing."""
    placed = [
        row.audit_boundary_tokens == row.expected_span_target_start
        for row in rows
        if row.audit_boundary_tokens is not None and row.expected_span_target_start is not None
    ]
    wanted = [
        row for row in rows if row.expected_semantic and row.audit_materialized_tokens is not None
    ]
    supplied = [row for row in wanted if row.expected_supplied_tokens]
    expected = sum(row.expected_supplied_tokens or 0 for row in supplied)
    materialised = sum(row.audit_materialized_tokens or 0 for row in supplied)
    mechanisms = Counter(row.audit_mechanism for row in rows if row.audit_mechanism is not None)
    return {
        "boundary_alignment_rate": _share(placed),
        "materialized_reuse_rate": _share([bool(row.audit_materialized_tokens) for row in wanted]),
        "materialized_reuse_token_rate": materialised / expected if expected else None,
        "mechanisms": dict(sorted(mechanisms.items())) or None,
    }


def integrity(rows: Sequence[RequestRow]) -> dict[str, Any]:
    """Leaks, contamination and unconfirmed claims, any of which invalidates a fast result."""
    # A model that also states the wrong value cold is wrong, not leaking.
    probes = [
        row.donor_fact_leak and not row.cold_donor_fact_leak
        for row in rows
        if row.donor_fact_leak is not None
    ]
    repeats = [row.repeat_contaminated for row in rows if row.repeat_contaminated is not None]
    claims = [row.claimed_reuse_tokens for row in rows if row.claimed_reuse_tokens is not None]
    negatives = [row for row in rows if row.negative_control]
    told = [tokens for row in negatives if (tokens := semantic_tokens(row)) is not None]
    length = sum(row.engine_prompt_tokens or row.prompt_tokens for row in negatives)
    return {
        "donor_fact_probes": len(probes),
        "donor_fact_leaks": sum(probes),
        "donor_fact_leak_rate": _share(probes),
        "contamination_checks": len(repeats),
        "contaminated_repeats": sum(repeats),
        "propagation_contamination_rate": _share(repeats),
        "claimed_reuse_tokens": sum(claims) if claims else None,
        "negative_control_semantic_tokens": sum(told) if told else None,
        "negative_control_semantic_token_rate": sum(told) / length if told and length else None,
    }


def _speedup(name: str, rows: Sequence[RequestRow]) -> dict[str, Any]:
    ratios = statistics.paired_ratios(
        [row.cold_ttft_ms or 0.0 for row in rows], [row.ttft_ms or 0.0 for row in rows]
    )
    interval = statistics.bootstrap_median(ratios)
    return {
        f"{name}_median": None if interval is None else interval.value,
        f"{name}_ci": None if interval is None else [interval.low, interval.high],
        f"{name}_p10": statistics.percentile(ratios, 10) if ratios else None,
        f"{name}_p90": statistics.percentile(ratios, 90) if ratios else None,
    }


def _mean(name: str, values: Sequence[float | None]) -> dict[str, Any]:
    interval = statistics.bootstrap_mean([value for value in values if value is not None])
    return {
        f"{name}_mean": None if interval is None else interval.value,
        f"{name}_ci": None if interval is None else [interval.low, interval.high],
    }


def _shape(values: Sequence[float | None]) -> dict[str, Any] | None:
    shape = statistics.distribution([value for value in values if value is not None])
    return None if shape is None else shape.to_dict()


def _share(values: Sequence[bool | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
