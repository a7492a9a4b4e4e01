"""The best donor for a prompt, and how much of the prompt donors share."""

from __future__ import annotations

from dataclasses import dataclass

from semblend.core.plan import Plan
from semblend.discovery.donor_store import Lookup


@dataclass(frozen=True, slots=True, kw_only=True)
class DonorMatch:
    """The best donor for a prompt: by tokens, or else by meaning."""

    donor_id: str
    shared_tokens: int
    """Prompt tokens that this donor's spans cover; 0 for a match by meaning only."""
    similarity: float | None
    plan: Plan


def covered_tokens(lookup: Lookup) -> int:
    """Target tokens inside some run."""
    total, reach = 0, 0
    for run in lookup.runs:  # in target order
        start = max(run.target_start, reach)
        if run.target_end > start:
            total += run.target_end - start
            reach = run.target_end
    return total


def best_match(plan: Plan) -> DonorMatch | None:
    """The donor that shares most of a plan's prompt, or the one closest in meaning."""
    shared: dict[str, int] = {}
    for span in plan.spans:
        shared[span.donor_id] = shared.get(span.donor_id, 0) + span.length
    if shared:
        donor_id = max(shared, key=lambda name: shared[name])
    elif plan.evidence.similar_donor_id is not None:
        donor_id = plan.evidence.similar_donor_id
    else:
        return None
    same = donor_id == plan.evidence.similar_donor_id
    return DonorMatch(
        donor_id=donor_id,
        shared_tokens=shared.get(donor_id, 0),
        similarity=plan.evidence.similarity if same else None,
        plan=plan,
    )
