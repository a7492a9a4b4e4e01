"""The state of one request inside the engine."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
import torch

from semblend.core.account import Account
from semblend.core.plan import Hole, Plan
from semblend.core.tokens import TokenArray
from semblend.engine.api import GenerationRequest
from semblend.engine.cache.pages import PageTable
from semblend.engine.handle import RequestHandle
from semblend.engine.layer_load import PendingLoad
from semblend.engine.output.detokenise import StopStrings, StreamDecoder
from semblend.engine.output.json_grammar import Grammar

if TYPE_CHECKING:
    from semblend.engine.cache.chains import Chain


class Phase(StrEnum):
    """A request's phase."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One request from submission to its last event. Used by the worker thread only."""

    request: GenerationRequest
    handle: RequestHandle
    share_key: bytes | None
    """Key for sharing its exact pages; None (an incomplete namespace) shares with nobody."""
    max_new_tokens: int
    decoder: StreamDecoder
    stops: StopStrings
    generator: torch.Generator | None
    account: Account
    grammar: Grammar | None = None
    """Grammar the answer must follow; None for free text."""
    submitted_at: float = field(default_factory=time.perf_counter)
    phase: Phase = Phase.WAITING
    table: PageTable | None = None
    """This request's pages, starting with the shared ones of its exact prefix; None while waiting.
    """
    plan: Plan | None = None
    """The plan whose copies are in place; None if the request is computed from tokens only."""
    loading: PendingLoad | None = None
    """The plan's pending copies, which the first pass places."""
    pending: deque[Hole] = field(default_factory=deque)
    """Positions still to compute, in order. The last run yields the next token."""
    turns: int = 0
    """Requests in that chain so far."""
    chain: Chain | None = None
    """The chain, while its K/V is in use here."""
    cold: bool = False
    """Compute everything after its exact prefix, because reuse failed once."""
    output_ids: list[int] = field(default_factory=list)
    found: tuple[tuple[int, int], ...] = ()
    """Runs a donor holds, if the plan was for discovery only."""
    similarity: float | None = None
    policy: str = "none"
    planned: Plan | None = None
    """Its plan, whether it may be executed or not."""
    admitted_at: float = 0.0
    lookup_ms: float = 0.0
    prefilled_at: float = 0.0
    first_token_at: float = 0.0

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.tokens)

    @property
    def exact_tokens(self) -> int:
        """Tokens in shared exact-prefix pages."""
        return self.account.exact_tokens

    @property
    def continued_tokens(self) -> int:
        """Tokens after those with K/V from the chain this request continues."""
        return self.account.continued_tokens

    @property
    def placed_tokens(self) -> int:
        """Leading tokens in shared pages: exact ones, then the chain's."""
        return self.exact_tokens + self.continued_tokens

    @property
    def has_borrowed(self) -> bool:
        """Whether any K/V in place may be approximate: from donors or the chain."""
        return self.plan is not None or self.continued_tokens > 0

    @property
    def length(self) -> int:
        """Number of prompt and output tokens so far."""
        return self.prompt_tokens + len(self.output_ids)

    @property
    def exact_until(self) -> int:
        """First position whose K/V depends on reused K/V. Everything before it is exact."""
        if self.continued_tokens:
            return self.exact_tokens
        first = None if self.plan is None else self.plan.first_approximate_token
        return self.length if first is None else first

    @property
    def tainted(self) -> bool:
        """Whether any of this request's K/V is approximate."""
        return self.exact_until < self.length

    def drop_load(self) -> None:
        """Drop the pending load, if there is one."""
        loading, self.loading = self.loading, None
        if loading is not None:
            loading.close()

    def tokens_between(self, start: int, end: int) -> TokenArray:
        """Token ids at positions [start, end) of prompt and output."""
        prompt = self.request.tokens
        if end <= len(prompt):
            return prompt[start:end]
        tail = np.asarray(self.output_ids, dtype=np.int32)
        return np.concatenate((prompt, tail))[start:end]
