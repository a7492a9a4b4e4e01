"""How adapters count settled accounts: the same names and sums in every engine's /metrics."""

from __future__ import annotations

from semblend.core.ledger import Settlement

LABELLED_COUNTERS = {
    "tokens": ("Prompt tokens by where their K/V came from.", "source"),
    "requests": ("Requests by outcome.", "outcome"),
    "declines": ("Requests not reused, by reason.", "reason"),
}
"""Counters of /metrics: what each counts, and its label."""
TOKEN_SOURCES = ("exact", "continued", "reused", "recomputed", "computed")
"""Where a prompt token's K/V came from; the sources add up to the prompt. Continued is the
approximate K/V of the request's own chain."""
REUSABLE = "reusable"
"""Counted in addition: tokens computed although a donor has them, because loading is not allowed
(discovery only, or no certificate). They are also in `computed`, so sums leave them out."""


def tokens_by_source(settlement: Settlement) -> dict[str, int]:
    """A prompt's tokens by where their K/V came from, and how many were reusable.

    Hole tokens count as computed, like everything that no donor and no cache supplied.
    """
    exact, reused = settlement.exact_tokens, settlement.materialised_tokens
    recomputed = settlement.recomputed_tokens
    computed = settlement.computed_tokens - recomputed
    amounts = exact, settlement.continued_tokens, reused, recomputed, computed
    sources = dict(zip(TOKEN_SOURCES, amounts, strict=True))
    return {**sources, REUSABLE: settlement.reusable_tokens}
