"""What adapters write down about a request: the same words and sums in every engine."""

from __future__ import annotations

from semblend.core.errors import PlanError
from semblend.core.ledger import Ledger, Settlement
from semblend.core.outcomes import DeclineReason

LABELLED_COUNTERS = {
    "tokens": ("Prompt tokens by where their K/V came from.", "source"),
    "requests": ("Requests by outcome.", "outcome"),
    "declines": ("Requests not reused, why.", "reason"),
}
"""Counters of /metrics: what one counts, and its label."""
TOKEN_SOURCES = ("exact", "reused", "recomputed", "computed")


def tokens_by_source(
    *, prompt: int, exact: int = 0, reused: int = 0, recomputed: int = 0
) -> dict[str, int]:
    """A prompt's tokens by where their K/V came from.

    Tokens of holes are computed, like everything that no donor and no cache supplied.
    """
    computed = prompt - exact - reused - recomputed
    return dict(zip(TOKEN_SOURCES, (exact, reused, recomputed, computed), strict=True))


def settle_unreused(
    ledger: Ledger,
    request_id: str,
    *,
    prompt_tokens: int,
    exact_tokens: int,
    reason: DeclineReason | None,
    detail: str,
) -> Settlement:
    """Settle a request that ran without reuse: as planned, or as refused before any plan."""
    try:
        return ledger.settle_cold(request_id, exact_tokens=exact_tokens)
    except PlanError:  # never planned for
        counts = {"prompt_tokens": prompt_tokens, "exact_tokens": exact_tokens}
        if reason is not None:
            return ledger.refused(request_id, reason, detail, **counts)
        return ledger.exact(request_id, **counts)
