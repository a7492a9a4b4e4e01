"""The reply to one request, as the client saw it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

LOWEST_LOGPROB = -1e4
"""Servers encode impossible tokens as -inf, NaN or -9999, none of which can be summed."""


def finite_logprob(value: Any) -> float:
    """A log probability safe for arithmetic."""
    number = float(value)
    return max(number, LOWEST_LOGPROB) if math.isfinite(number) else LOWEST_LOGPROB


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer. A failed request is a reply with `error`, never an exception.

    Token counts are as the backend reports them; None if it reports nothing.
    """

    request_id: str
    text: str = ""
    ttft_ms: float | None = None
    """From sending the request to the first token with content."""
    latency_ms: float = 0.0
    gaps_ms: tuple[float, ...] = ()
    """Times between neighbouring events with content."""
    error: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    exact_tokens: int | None = None
    """Served from the backend's exact prefix cache."""
    reused_tokens: int | None = None
    """Semantic reuse, according to the backend's metadata."""
    cached_tokens: int | None = None
    """All reuse together: exact and semantic where both are told, else the one number given."""
    candidate_tokens: int | None = None
    """Found with donors and computed all the same: what reuse would have been."""
    continued_tokens: int | None = None
    """Taken over from an earlier request of the same conversation, approximate K/V included."""
    confirmed_by: str | None = None
    """The source: ``response`` or ``counters`` (the engine's own); None if there is none."""
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
    """The most likely tokens and their log probabilities, for every generated token."""
    strip: Any = None
    """The backend's own report of where each prompt token came from, if it gives one."""

    @property
    def ok(self) -> bool:
        """Whether a complete answer came back."""
        return self.error is None
