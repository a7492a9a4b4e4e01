"""What the mock's protocols share: reading a turn and writing tokens."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from typing import Protocol as Interface

from sembench.mock_engine.engine import AdmittedRequest

MAX_TOKENS_LIMIT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """A completion request, in any protocol."""

    prompt: str
    max_tokens: int
    stream: bool
    include_usage: bool = False
    top_logprobs: int = 0
    cache_salt: str = ""
    request_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One generated token; the first of its log probabilities is its own."""

    text: str
    top_logprobs: tuple[tuple[str, float], ...] = ()


class Protocol(Interface):
    """Parses a request body and formats the answer. Raises ValueError on a bad body."""

    def read(self, body: Any) -> CompletionRequest: ...

    def opening(self, completion: CompletionRequest, admitted: AdmittedRequest) -> str:
        """What to stream before the first content token."""
        ...

    def token(
        self, completion: CompletionRequest, admitted: AdmittedRequest, tokens: Sequence[Token]
    ) -> str:
        """The event for the newest of `tokens`."""
        ...

    def closing(
        self,
        completion: CompletionRequest,
        admitted: AdmittedRequest,
        tokens: Sequence[Token],
        times: Mapping[str, float],
        silent: bool,
    ) -> str:
        """What to stream after the last token; `silent` omits all reports."""
        ...

    def whole(
        self,
        completion: CompletionRequest,
        admitted: AdmittedRequest,
        tokens: Sequence[Token],
        times: Mapping[str, float],
        silent: bool,
    ) -> Mapping[str, Any]:
        """The complete, unstreamed answer."""
        ...


def event(payload: Mapping[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(payload, ensure_ascii=False)}\n\n"


def read_count(body: Mapping[str, Any], key: str, default: int, *, at_least: int = 1) -> int:
    """A bounded count from a request body."""
    value = body.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{key}: expected a whole number, got {value!r}")
    if not at_least <= value <= MAX_TOKENS_LIMIT:
        raise ValueError(f"{key}: expected {at_least} to {MAX_TOKENS_LIMIT}, got {value}")
    return value


def fake_top_logprobs(text: str, count: int) -> tuple[tuple[str, float], ...]:
    """`count` made-up alternatives, determined by the token alone."""
    if count == 0:
        return ()
    tag = hashlib.sha256(text.encode("utf-8")).hexdigest()
    others = ((f"alt-{tag[at : at + 4]}", -5.0 - at) for at in range(count - 1))
    return ((text, -0.02), *others)
