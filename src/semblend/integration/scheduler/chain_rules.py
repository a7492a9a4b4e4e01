"""Which requests of an engine may continue a conversation, and what the chain rule sees of them.

The rule itself is `core/chain.py`. Engines differ in how they find the K/V again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from semblend.core.chain import Follower, Link
from semblend.core.tokens import TokenArray
from semblend.integration.scheduler.request import Request
from semblend.pipeline import SemBlendPipeline


def _none(_: Request[Any]) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRules:
    """The same in every engine."""

    pipeline: SemBlendPipeline
    objection: Callable[[Request[Any]], str | None] = _none
    """Says why nothing approximate may be used for a request, if so."""

    def may_follow(self, request: Request[Any]) -> bool:
        """Whether it may continue another."""
        return request.arrival.may_reuse and self._is_allowed(request)

    def may_keep(self, request: Request[Any]) -> bool:
        """Whether others may continue it."""
        return request.arrival.wants_capture is not False and self._is_allowed(request)

    def follower(self, request: Request[Any], tokens: TokenArray) -> Follower:
        """A request with these tokens, which may continue a link."""
        share_key = self.pipeline.share_key(request.namespace)
        return Follower(share_key=share_key, tokens=tokens, policy=request.arrival.policy)

    def link(
        self, request: Request[Any], tokens: TokenArray, *, computed_tokens: int, exact_tokens: int
    ) -> Link:
        """A request that has ended, with its prompt and its answer."""
        before = 0 if request.continuation is None else request.continuation.turns
        return Link(
            share_key=self.pipeline.share_key(request.namespace),
            tokens=tokens,
            prompt_tokens=len(request.tokens),
            computed_tokens=computed_tokens,
            exact_tokens=exact_tokens,
            turns=1 + before,
            policy=request.arrival.policy,
        )

    def _is_allowed(self, request: Request[Any]) -> bool:
        arrival = request.arrival
        return (
            arrival.refusal is None
            and arrival.ladder_id is None
            and arrival.namespace.is_complete
            and self.objection(request) is None
            and self.pipeline.objection(arrival.policy) is None
        )
