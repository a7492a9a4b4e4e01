"""What came back from one request, as the client saw it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

LOWEST_LOGPROB = -1e4
"""Servers write impossible tokens as -inf, NaN or -9999; none of them is a number to add up."""


def finite_logprob(value: Any) -> float:
    """A log probability that can be calculated with."""
    number = float(value)
    return max(number, LOWEST_LOGPROB) if math.isfinite(number) else LOWEST_LOGPROB


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer. A failed request is a reply with `error`, never an exception.

    Token counts are the backend's own words; None where it said nothing.
    """

    request_id: str
    text: str = ""
    ttft_ms: float | None = None
    """From sending the request to the first token with content."""
    latency_ms: float = 0.0
    error: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    exact_tokens: int | None = None
    """Served from the backend's exact prefix cache."""
    reused_tokens: int | None = None
    """Semantic reuse, as the backend's metadata states it."""
    cached_tokens: int | None = None
    """All reuse together: exact and semantic where both are told, else the one number given."""
    candidate_tokens: int | None = None
    """Found with donors and computed all the same: what reuse would have been."""
    continued_tokens: int | None = None
    """Taken over from an earlier request of the same conversation, approximate ones included."""
    confirmed_by: str | None = None
    """Who says so: ``response`` or ``counters`` (the engine's own); None where nobody does."""
    outcome: str | None = None
    reason: str | None = None
    similarity: float | None = None
    route: str | None = None
    worker_id: str | None = None
    engine_request_id: str | None = None
    engine_ttft_ms: float | None = None
    queue_time_ms: float | None = None
    token_ids: tuple[int, ...] | None = None
    top_logprobs: tuple[dict[str, float], ...] | None = None
    """For every generated token, the most likely tokens and their log probabilities."""
    strip: Any = None
    """The backend's own account of where each prompt token came from, where it gives one."""

    @property
    def ok(self) -> bool:
        """Whether a complete answer came back."""
        return self.error is None
