"""What becomes a donor: the rules, the request's own choice, and what never qualifies."""

from __future__ import annotations

from typing import Any

import xxhash

from semblend.integration.modes import CapturePolicy
from semblend.integration.scheduler.request import Request
from semblend.integration.scheduler.setup import CaptureRules

QUEUE_FULL = "capture_write_queue_full"


def skip_reason(
    request: Request[Any], rules: CaptureRules, *, tokens: int, pending: int
) -> str | None:
    """Why the first `tokens` of a request, all exact, are not kept; None if they are.

    Parameters
    ----------
    pending
        Captures on their way to the workers.
    """
    arrival = request.arrival
    if arrival.refusal is not None:
        return arrival.refusal
    # An exact prefix was kept already, by the request that computed it.
    new = tokens - request.exact_tokens
    if arrival.ladder_id is not None or (request.tainted and new < rules.min_prompt_tokens):
        return "approximate"
    if arrival.wants_capture is False or rules.policy is CapturePolicy.NONE:
        return "register_donors_disabled"
    if not arrival.namespace.is_complete:
        return "incomplete_namespace"
    if tokens < rules.min_prompt_tokens:
        return "short_prompt"
    if rules.policy is CapturePolicy.HINTED and arrival.wants_capture is not True:
        return "not_hinted"
    if rules.policy is CapturePolicy.SAMPLED and not _sampled(request, rules):
        return "not_sampled"
    return QUEUE_FULL if pending >= rules.queue else None


def _sampled(request: Request[Any], rules: CaptureRules) -> bool:
    if request.arrival.wants_capture is True:
        return True
    share = xxhash.xxh3_64_intdigest(request.request_id.encode()) / 2**64
    return share < rules.sample_ratio
