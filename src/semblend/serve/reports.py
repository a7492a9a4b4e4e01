"""An engine's report as callers may see it: counts and times, no text, no foreign donors."""

from __future__ import annotations

from semblend.engine.api import RequestReport, TokenSource
from semblend.serve.auth import Pseudonyms
from semblend.serve.openai.replies import PromptTokensDetails, ReuseReport, Times, Usage


def hole_tokens(report: RequestReport) -> int:
    """Tokens in the reuse region that no span covers, computed between reused ones."""
    borrowed = {TokenSource.REUSED, TokenSource.RECOMPUTED}
    end = max((part.end for part in report.strip if part.source in borrowed), default=0)
    return sum(
        part.end - part.start
        for part in report.strip
        if part.source is TokenSource.COMPUTED and part.end <= end
    )


def reuse_report(report: RequestReport, *, tenant: str | None, names: Pseudonyms) -> ReuseReport:
    """The `semblend` object of a response.

    Donors are named by a keyed hash specific to the caller, which distinguishes donors and
    reveals nothing else. The engine's free-text detail is not included.
    """
    return ReuseReport(
        outcome=report.outcome.value,
        prompt_tokens=report.prompt_tokens,
        exact_tokens=report.exact_tokens,
        continued_tokens=report.continued_tokens,
        reused_tokens=report.reused_tokens,
        hole_tokens=hole_tokens(report),
        recomputed_tokens=report.recomputed_tokens,
        computed_tokens=report.computed_tokens,
        approximate=report.approximate,
        donors=len(report.donor_ids),
        donor_ids=[names.donor(tenant, donor_id) for donor_id in report.donor_ids],
        similarity=None if report.similarity is None else round(report.similarity, 4),
        policy=report.policy,
        certified=report.certified,
        reason=None if report.reason is None else report.reason.value,
        times=Times(
            queue_ms=round(report.queue_ms, 3),
            lookup_ms=round(report.lookup_ms, 3),
            prefill_ms=round(report.prefill_ms, 3),
            ttft_ms=round(report.ttft_ms, 3),
            total_ms=round(report.total_ms, 3),
        ),
    )


def usage(report: RequestReport) -> Usage:
    """OpenAI's token counts. Only exact hits are "cached", approximate reuse is not."""
    return Usage(
        prompt_tokens=report.prompt_tokens,
        completion_tokens=report.output_tokens,
        total_tokens=report.prompt_tokens + report.output_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=report.exact_tokens),
    )


def reuse_headers(report: ReuseReport, *, final: bool) -> dict[str, str]:
    """The report as `x-semblend-*` headers; before the end, only what is already known."""
    headers = {
        "x-semblend-outcome": report.outcome,
        "x-semblend-exact-tokens": str(report.exact_tokens),
        "x-semblend-continued-tokens": str(report.continued_tokens),
        "x-semblend-reused-tokens": str(report.reused_tokens),
        "x-semblend-hole-tokens": str(report.hole_tokens),
        "x-semblend-recomputed-tokens": str(report.recomputed_tokens),
        "x-semblend-computed-tokens": str(report.computed_tokens),
        "x-semblend-approximate": "true" if report.approximate else "false",
        "x-semblend-donors": str(report.donors),
        "x-semblend-policy": report.policy,
        "x-semblend-certified": "true" if report.certified else "false",
        "x-semblend-lookup-ms": f"{report.times.lookup_ms:.3f}",
        "x-semblend-prefill-ms": f"{report.times.prefill_ms:.3f}",
        "x-semblend-ttft-ms": f"{report.times.ttft_ms:.3f}",
    }
    if report.similarity is not None:
        headers["x-semblend-similarity"] = f"{report.similarity:.4f}"
    if report.reason is not None:
        headers["x-semblend-reason"] = report.reason
    if final:
        headers["x-semblend-total-ms"] = f"{report.times.total_ms:.3f}"
    return headers
