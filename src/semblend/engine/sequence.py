"""The state of one request while the engine has it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import torch

from semblend.core.account import Account
from semblend.core.plan import Hole, Plan
from semblend.core.tokens import TokenArray
from semblend.engine.api import GenerationRequest
from semblend.engine.detokenise import StopStrings, StreamDecoder
from semblend.engine.grammar import Grammar
from semblend.engine.handle import RequestHandle
from semblend.engine.loading import PendingLoad
from semblend.engine.pages import PageTable


class Phase(StrEnum):
    """Where a request is."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One request between submission and its last event; touched by the worker thread only."""

    request: GenerationRequest
    handle: RequestHandle
    share_key: bytes | None
    """Under which its exact pages are shared; None for an incomplete namespace: with nobody."""
    max_new_tokens: int
    decoder: StreamDecoder
    stops: StopStrings
    generator: torch.Generator | None
    account: Account
    grammar: Grammar | None = None
    """What the answer has to follow; None for free text."""
    submitted_at: float = field(default_factory=time.perf_counter)
    phase: Phase = Phase.WAITING
    table: PageTable | None = None
    """Pages of this request, the shared ones of its exact prefix first; None while waiting."""
    plan: Plan | None = None
    """The plan whose copies are in place; None for a request computed from its tokens alone."""
    loading: PendingLoad | None = None
    """The plan's copies where they are still on their way; the first pass brings them in."""
    pending: deque[Hole] = field(default_factory=deque)
    """Runs of positions still to compute, in order; the last of them yields the next token."""
    output_ids: list[int] = field(default_factory=list)
    similarity: float | None = None
    policy: str = "none"
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
        """Tokens whose pages are shared: an exact prefix."""
        return self.account.exact_tokens

    @property
    def length(self) -> int:
        """Prompt and output tokens known so far."""
        return self.prompt_tokens + len(self.output_ids)

    @property
    def exact_until(self) -> int:
        """First position whose K/V depends on reused K/V; everything before it is exact."""
        first = None if self.plan is None else self.plan.first_approximate_token
        return self.length if first is None else first

    @property
    def tainted(self) -> bool:
        """Whether any of this request's K/V is approximate."""
        return self.exact_until < self.length

    def drop_load(self) -> None:
        """Give up what is on its way, if anything is."""
        loading, self.loading = self.loading, None
        if loading is not None:
            loading.close()

    def tokens_between(self, start: int, end: int) -> TokenArray:
        """Token ids at positions [start, end), of prompt and output."""
        prompt = self.request.tokens
        if end <= len(prompt):
            return prompt[start:end]
        tail = np.asarray(self.output_ids, dtype=np.int32)
        return np.concatenate((prompt, tail))[start:end]
