"""One request as the scheduler side sees it, and how it is read from TensorRT-LLM's object."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from semblend.core.account import Account
from semblend.core.namespace import Namespace
from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray, as_token_array
from semblend.integration.trtllm.interfaces import RequestData, UpstreamRequest


class Progress(StrEnum):
    """How far an offer has come."""

    NONE = "none"
    OFFERED = "offered"
    """Told to the engine, which now counts on it."""
    DISPATCHED = "dispatched"
    """Blocks are known and the ranks have their orders."""
    CONFIRMED = "confirmed"
    """Every rank put the K/V in place."""
    FAILED = "failed"
    """A rank could not: its ladder's answer is thrown away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Salt:
    """A request's cache salt, as much of it as this engine tells a connector."""

    text: str | None = None
    number: int | None = None
    by_number: bool = False
    """Whether the engine tells the number alone."""


@dataclass(slots=True)
class RequestState:
    """One request, from the engine's question until it is gone."""

    request: Any
    request_id: int
    tokens: TokenArray
    namespace: Namespace | None
    """None where a part of it is not known: then nothing is looked for."""
    account: Account
    ladder_id: str | None = None
    refusal: str | None = None
    plan: Plan | None = None
    block_ids: tuple[int, ...] = ()
    """The prompt's blocks, once they are allocated."""
    offered_tokens: int = 0
    asynchronous: bool = False
    progress: Progress = Progress.NONE
    capture_id: int | None = None
    capture_decided: bool = False
    finished: bool = False
    replaced: bool = False
    """Whether the engine destroyed its allocation and asked anew: another state goes on."""

    @property
    def tainted(self) -> bool:
        """Whether any of its K/V may be approximate: then it is never captured."""
        return self.ladder_id is not None

    @property
    def computed_tokens(self) -> int:
        """Tokens of the engine's own prefix hit."""
        return self.account.exact_tokens

    @property
    def key(self) -> str:
        """Its name in the ledger and the audit stream."""
        return self.account.request_id


def prompt_of(request: UpstreamRequest) -> TokenArray:
    """The prompt's token ids.

    Raises
    ------
    InvalidTokensError
        If they are none.
    """
    tokens = as_token_array(np.asarray(request.get_tokens(0)))
    size = int(getattr(request, "prompt_len", len(tokens)))
    return tokens[:size].copy()


def salt_of(request: UpstreamRequest) -> Salt | None:
    """The request's salt; None where this version does not say, which is not "no salt"."""
    if hasattr(request, "cache_salt"):
        text = request.cache_salt
        if text is None or isinstance(text, str):
            return Salt(text=text)
        return None
    if hasattr(request, "cache_salt_id"):
        number = request.cache_salt_id
        if number is None or isinstance(number, int):
            return Salt(number=number, by_number=True)
    return None


def finishes_prompt(state: RequestState, data: RequestData) -> bool:
    """Whether the step that `data` (RequestData) belongs to computes the prompt's last token.

    Told from the request itself while it is in its context phase; a request already
    generating has its prompt behind it.
    """
    remaining = getattr(state.request, "context_remaining_length", None)
    scheduled = int(getattr(data, "num_scheduled_tokens", 0))
    position = int(getattr(data, "computed_position", 0))
    if position >= len(state.tokens):
        return True
    return isinstance(remaining, int) and 0 < remaining <= scheduled
