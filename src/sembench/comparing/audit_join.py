"""Joins an engine's own account of each request to the rows of a result.

An engine's request id contains ours (engines add a prefix or a suffix), so the join
needs neither clocks nor ordering. A row the engine does not mention stays unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from sembench import metrics
from sembench.comparing import paired
from sembench.engine_events.connector_audit import AuditedRequest, audited_requests
from sembench.live.identity import our_id_in
from sembench.results import RequestRow, Result


def join_audit(result: Result, lines: Iterable[str]) -> Result:
    """Fill in the rows' audit fields and recompute the aggregates."""
    requests = {
        ours: audited
        for engine_id, audited in audited_requests(lines).items()
        if (ours := our_id_in(engine_id)) is not None
    }
    rows = tuple(_joined(row, requests) for row in result.requests)
    return replace(
        result,
        requests=rows,
        aggregate=metrics.aggregate(rows),
        by_transform=metrics.by_transform(rows),
        paired=None if result.paired is None else {**result.paired, **paired.summarise(rows)},
    )


def _joined(row: RequestRow, requests: Mapping[str, AuditedRequest]) -> RequestRow:
    audited = requests.get(row.request_id or "")
    if audited is None:
        return row
    return replace(
        row,
        audit_outcome=_outcome(audited),
        audit_decline_reason=audited.reasons[-1] if audited.reasons else None,
        audit_mechanism=_mechanism(row, audited),
        audit_boundary_tokens=audited.boundary,
        audit_supplied_tokens=audited.advertised_tokens,
        audit_materialized_tokens=audited.materialised_tokens,
        audit_similarity=audited.similarity,
        external_confirmed_tokens=audited.materialised_tokens,
        external_confirmed_tokens_source="connector_audit",
    )


def _outcome(audited: AuditedRequest) -> str:
    if audited.materialised_tokens:
        return "materialised"
    if audited.advertised_tokens:
        return "declined"
    return "discovery_only" if audited.semantic_hit else "cold"


def _mechanism(row: RequestRow, audited: AuditedRequest) -> str:
    """How reuse reached the prompt: at its head, in scattered pieces, or not semantically."""
    if audited.materialised_tokens:
        exact = row.exact_confirmed_tokens or 0
        if audited.boundary is None:
            return "external"
        return "head" if audited.boundary <= exact else "scatter"
    return "exact" if row.exact_confirmed_tokens else "none"
