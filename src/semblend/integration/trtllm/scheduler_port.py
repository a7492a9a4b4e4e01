"""TensorRT-LLM's scheduler, as the shared scheduler side asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from semblend.core.errors import PlanError
from semblend.core.namespace import Namespace
from semblend.core.tokens import TokenArray, as_token_array
from semblend.integration.isolation import by_salt, by_salt_number
from semblend.integration.ladder import split_salt
from semblend.integration.ladder_desk import Ladders
from semblend.integration.scheduler.leader_side import OfferedRequest
from semblend.integration.scheduler.port import Loan
from semblend.integration.scheduler.request import Arrival
from semblend.integration.trtllm.interfaces import RequestData, UpstreamRequest
from semblend.integration.trtllm.support import request_refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Salt:
    """A request's cache salt, as much of it as this engine tells a connector."""

    text: str | None = None
    number: int | None = None
    by_number: bool = False
    """Whether the engine tells the number alone."""


class TrtRequest(OfferedRequest):
    """One of TensorRT-LLM's requests, and what the engine has for it."""

    __slots__ = ("parks", "request")

    def __init__(self, request: Any, name: str) -> None:
        super().__init__(name)
        self.request = request
        self.parks = False
        """Whether it waits for its load, instead of the step."""

    def finishes_prompt(self, prompt_tokens: int, data: RequestData) -> bool:
        """Whether the step that `data` belongs to computes the prompt's last token.

        Told from the request itself while it is in its context phase; a request already
        generating has its prompt behind it.
        """
        remaining = getattr(self.request, "context_remaining_length", None)
        scheduled = int(getattr(data, "num_scheduled_tokens", 0))
        if int(getattr(data, "computed_position", 0)) >= prompt_tokens:
            return True
        return isinstance(remaining, int) and 0 < remaining <= scheduled


class TrtScheduler:
    """What the shared side asks; a handle stands for its request on both sides."""

    def __init__(self, namespace: Namespace, ladders: Ladders) -> None:
        self._namespace = namespace
        self._ladders = ladders
        self._requests: dict[str, TrtRequest] = {}
        self.salts_by_number = False
        """Whether this engine tells a connector the numbers of salts alone."""

    def request_id(self, native: TrtRequest) -> str:
        """The name of a request."""
        return native.name

    def handle(self, native: TrtRequest) -> TrtRequest:
        """The request's handle: itself."""
        return native

    def arrival(self, native: TrtRequest) -> Arrival[TrtRequest]:
        """What a request is to us."""
        ladder_id, namespace = self._whose(salt_of(native.request))
        self._requests[native.name] = native
        return Arrival(
            request_id=native.name,
            handle=native,
            tokens=prompt_of(native.request),
            namespace=namespace,
            ladder_id=ladder_id,
            refusal=request_refusal(native.request),
        )

    def blocks_of(self, request_id: str) -> tuple[int, ...]:
        """A request's blocks.

        Raises
        ------
        PlanError
            If the engine did not give it one for every token of its prompt.
        """
        blocks = self._requests[request_id].block_ids
        if not blocks or min(blocks) < 0:
            raise PlanError(f"request {request_id}: no blocks")
        return blocks

    def forget(self, request_id: str) -> None:
        """A request is gone."""
        self._requests.pop(request_id, None)

    def borrow(self, count: int, *, keep_free: float) -> Loan | None:
        """Nothing: a connector cannot compute here."""
        return None

    def give_back(self, loan: Loan) -> None:
        """Nothing was borrowed."""

    def of_salt(self, text: str | None, number: int | None) -> Namespace:
        """The namespace of whoever has this salt."""
        isolation = by_salt_number(number) if self.salts_by_number else by_salt(text)
        return self._namespace.with_parts(cache_salt=isolation)

    def _whose(self, salt: Salt | None) -> tuple[str | None, Namespace]:
        """The ladder a salt belongs to, and the namespace of whoever has it."""
        if salt is None:
            return None, Namespace()  # nobody's: it matches nothing
        self.salts_by_number = salt.by_number
        user_salt, ladder_id = split_salt(salt.text)
        if salt.by_number:
            ladder_id = self._ladders.id_of_number(salt.number)
        if ladder_id is not None:
            return ladder_id, self._ladders.namespace_of(ladder_id) or Namespace()
        return None, self.of_salt(user_salt, salt.number)


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
