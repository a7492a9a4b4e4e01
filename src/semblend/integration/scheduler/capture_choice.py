"""Which prompts become donors: the rules, the request's own choice, and what never qualifies."""

from __future__ import annotations

from typing import Any

import xxhash

from semblend.integration.modes import CapturePolicy
from semblend.integration.scheduler.request import Request
from semblend.integration.scheduler.setup import CaptureRules

QUEUE_FULL = "capture_write_queue_full"


def skip_reason(request: Request[Any], rules: CaptureRules, *, pending: int) -> str | None:
    """Why a prompt is not kept; None if it is.

    Parameters
    ----------
    pending
        Captures on their way to the workers.
    """
    arrival = request.arrival
    if arrival.refusal is not None:
        return arrival.refusal
    if request.tainted or arrival.ladder_id is not None:
        return "approximate"
    if arrival.wants_capture is False or rules.policy is CapturePolicy.NONE:
        return "register_donors_disabled"
    if not arrival.namespace.is_complete:
        return "incomplete_namespace"
    if len(arrival.tokens) < rules.min_prompt_tokens:
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
