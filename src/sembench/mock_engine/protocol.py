"""What the mock's two protocols have in common: a turn read, tokens written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from typing import Protocol as Interface

from sembench.mock_engine.engine import Admission

MAX_TOKENS_LIMIT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A completion request, whatever protocol it came by."""

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
    """Reads a request body and words the answer. Bodies it cannot read raise ValueError."""

    def read(self, body: Any) -> Turn:
        """The turn of a request body."""
        ...

    def opening(self, turn: Turn, admission: Admission) -> str:
        """What is streamed before the first content token."""
        ...

    def token(self, turn: Turn, admission: Admission, tokens: Sequence[Token]) -> str:
        """The event of the newest of `tokens`."""
        ...

    def closing(
        self,
        turn: Turn,
        admission: Admission,
        tokens: Sequence[Token],
        times: Mapping[str, float],
        silent: bool,
    ) -> str:
        """What is streamed after the last token; `silent` leaves out all accounts."""
        ...

    def whole(
        self,
        turn: Turn,
        admission: Admission,
        tokens: Sequence[Token],
        times: Mapping[str, float],
        silent: bool,
    ) -> Mapping[str, Any]:
        """The answer in one piece."""
        ...


def event(payload: Mapping[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(payload, ensure_ascii=False)}\n\n"


def read_count(body: Mapping[str, Any], key: str, default: int, *, at_least: int = 1) -> int:
    """A bounded count from a request body."""
    value = body.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{key}: a whole number expected, got {value!r}")
    if not at_least <= value <= MAX_TOKENS_LIMIT:
        raise ValueError(f"{key}: {at_least} to {MAX_TOKENS_LIMIT} expected, got {value}")
    return value


def fake_top_logprobs(text: str, count: int) -> tuple[tuple[str, float], ...]:
    """`count` made-up alternatives that depend on the token alone: the same every time."""
    if count == 0:
        return ()
    tag = hashlib.sha256(text.encode("utf-8")).hexdigest()
    others = ((f"alt-{tag[at : at + 4]}", -5.0 - at) for at in range(count - 1))
    return ((text, -0.02), *others)
