"""One request as the scheduler side sees it, and how it is read from TensorRT-LLM's object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from semblend.core.tokens import TokenArray, as_token_array
from semblend.integration.scheduler.request import Request
from semblend.integration.trtllm.interfaces import RequestData, UpstreamRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Salt:
    """A request's cache salt, as much of it as this engine tells a connector."""

    text: str | None = None
    number: int | None = None
    by_number: bool = False
    """Whether the engine tells the number alone."""


@dataclass(slots=True, eq=False)
class Blocks:
    """TensorRT-LLM's own object for a request, and what it allocated."""

    request: Any
    number: int
    """The engine's number for it."""
    block_ids: tuple[int, ...] = ()
    """The prompt's blocks, once they are allocated."""
    asynchronous: bool = False
    capture_id: int | None = None
    replaced: bool = False
    """Whether the engine destroyed its allocation and asked anew: another state goes on."""


State: TypeAlias = Request[Blocks]
"""One request, from the engine's question until it is gone."""


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


def finishes_prompt(state: State, data: RequestData) -> bool:
    """Whether the step that `data` (RequestData) belongs to computes the prompt's last token.

    Told from the request itself while it is in its context phase; a request already
    generating has its prompt behind it.
    """
    remaining = getattr(state.handle.request, "context_remaining_length", None)
    scheduled = int(getattr(data, "num_scheduled_tokens", 0))
    position = int(getattr(data, "computed_position", 0))
    if position >= len(state.tokens):
        return True
    return isinstance(remaining, int) and 0 < remaining <= scheduled
