"""Promotion: conversations over approximate K/V are computed exactly in idle steps.

A chain that was continued is computed from front to back, a piece a step, in blocks borrowed from
the engine's own cache. Each piece's whole blocks become ordinary prefix blocks at once, so an
interruption loses one piece. With its last token the chain becomes a donor and is forgotten: from
then on the conversation is exact.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from semblend.core.namespace import Namespace
from semblend.core.tokens import TokenArray
from semblend.integration.scheduler.engine_chains import EngineChains, KeptChain, PublicBlocks
from semblend.integration.scheduler.orders import ShadowOrder, WorkerReport
from semblend.integration.scheduler.port import Loan, SchedulerPort
from semblend.integration.scheduler.shadows import CHUNK_TOKENS, FREE_SHARE
from semblend.integration.stats import Stats

logger = logging.getLogger("semblend.adapter")

MOST_EFFORT = 2
"""How often a chain's tokens are computed at most. Its blocks may be evicted meanwhile."""


class Donate(Protocol):
    """Has exact K/V in an engine's blocks copied."""

    def __call__(
        self, name: str, tokens: TokenArray, namespace: Namespace, block_ids: tuple[int, ...]
    ) -> None: ...


@dataclass(slots=True, eq=False)
class _Promotion:
    number: int
    chain: KeptChain
    public: PublicBlocks
    loan: Loan
    """The blocks of all its tokens: exact ones that were found, then borrowed ones."""
    done: int
    """Tokens computed or found."""
    published: int
    """Whole blocks that others can find."""
    ordered: bool = False
    donated: bool = False

    @property
    def name(self) -> str:
        return f"{self.chain.request_id}.promoted"


class Promotions:
    """Makes chains exact, one at a time. Called on the scheduler's thread; nothing raises."""

    def __init__(
        self,
        *,
        chains: EngineChains,
        port: SchedulerPort[Any, Any],
        block_size: int,
        step_tokens: int,
        donate: Donate,
        is_donating: Callable[[str], bool],
        stats: Stats,
    ) -> None:
        """Start with none.

        Parameters
        ----------
        donate, is_donating
            Have exact K/V copied; whether some rank still reads it, by name.
        """
        self._chains = chains
        self._port = port
        self._size = block_size
        self._piece = max(1, min(CHUNK_TOKENS, step_tokens) // block_size) * block_size
        self._donate = donate
        self._is_donating = is_donating
        self._stats = stats
        self._numbers = itertools.count(-1, -1)  # shadow samples count upwards
        self._current: _Promotion | None = None

    @property
    def has_pending_work(self) -> bool:
        """Whether the engine should keep stepping although no request waits for an answer."""
        return self._current is not None or self._next() is not None

    def orders(self, *, idle: bool) -> list[ShadowOrder]:
        """What the workers compute in the step being built; nothing while requests are served."""
        try:
            if idle:
                return self._orders()
            if self._current is not None and not (self._current.ordered or self._current.donated):
                self.clear()  # requests may need the blocks; what was published is found again
            return []
        except Exception:
            logger.warning("SemBlend gives up a promotion", exc_info=True)
            self._give_up()
            return []

    def settle(self, report: WorkerReport) -> None:
        """Take the workers' report on a piece."""
        current = self._current
        if current is None:
            return
        try:
            if current.number in report.shadow_failed:
                self._give_up()
            elif current.number in report.shadow_done:
                self._computed(current)
            elif current.donated and not self._is_donating(current.name):
                self.clear()
        except Exception:
            logger.warning("SemBlend gives up a promotion", exc_info=True)
            self._give_up()

    def clear(self) -> None:
        """Return the blocks. What was published stays, and the chain may be taken up again."""
        current, self._current = self._current, None
        if current is not None:
            self._port.give_back(current.loan)

    def _give_up(self) -> None:
        """Its conversation may still continue the chain."""
        if self._current is not None:
            self._current.chain.promoted_tokens = _effort(self._current.chain)
        self.clear()

    def _next(self) -> KeptChain | None:
        wanted = (
            chain for chain in self._chains.used_again() if chain.promoted_tokens < _effort(chain)
        )
        return next(wanted, None)

    def _orders(self) -> list[ShadowOrder]:
        if self._current is None:
            self._begin()
        current = self._current
        if current is None or current.ordered or current.donated:
            return []
        tokens = current.chain.tokens
        start, end = current.done, min(len(tokens), current.done + self._piece)
        current.done, current.ordered = end, True
        return [
            ShadowOrder(
                sample_id=current.number,
                request_id=current.name,
                tokens=tokens,
                start=start,
                end=end,
                block_ids=current.loan.block_ids,
                adapter=current.chain.adapter,
            )
        ]

    def _begin(self) -> None:
        chain = self._next()
        if chain is None:
            return
        computed, chain.promoted_tokens = chain.promoted_tokens, _effort(chain)
        tokens = chain.tokens
        public = self._chains.public_blocks(chain, tokens)
        # The last token is computed anew in any case, as an engine does.
        found = public.hold((len(tokens) - 1) // self._size)
        count = -(-len(tokens) // self._size) - len(found.blocks)
        loan = self._port.borrow(count, keep_free=FREE_SHARE)
        if loan is None:
            self._port.give_back(found)
            return  # too large, now or ever: not asked for again
        self._current = _Promotion(
            number=next(self._numbers),
            chain=chain,
            public=public,
            loan=Loan(
                block_ids=(*found.block_ids, *loan.block_ids),
                blocks=[*found.blocks, *loan.blocks],
            ),
            done=len(found.blocks) * self._size,
            published=len(found.blocks),
        )
        chain.promoted_tokens = computed

    def _computed(self, current: _Promotion) -> None:
        current.ordered = False
        full = current.done // self._size
        new = current.done - current.published * self._size
        current.public.publish(current.loan.blocks, current.published, full)
        current.published = full
        current.chain.promoted_tokens += new
        self._stats.count("promoted_tokens", new)
        tokens = current.chain.tokens
        if current.done < len(tokens):
            return
        self._chains.became_exact(current.chain)
        current.donated = True
        self._donate(current.name, tokens, current.chain.namespace, current.loan.block_ids)
        if not self._is_donating(current.name):
            self.clear()


def _effort(chain: KeptChain) -> int:
    return MOST_EFFORT * len(chain.tokens)
