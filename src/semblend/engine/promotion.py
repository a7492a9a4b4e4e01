"""Promotion: conversations over approximate K/V are computed exactly in idle steps.

Work goes from front to back, a few tokens per step, into separate pages. Each step's full pages
become ordinary prefix pages at once, so an interruption loses at most one step. When the last token
of a chain is done, the chain becomes a donor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from semblend.engine.batch import ComputeRun
from semblend.engine.cache.chains import Chain, Chains
from semblend.engine.cache.exact_kv import ExactKv
from semblend.engine.cache.pages import PageTable
from semblend.engine.cache.pool import PagedPool
from semblend.engine.cache.prefix_cache import PrefixCache, take_pages
from semblend.engine.model import LoadedModel
from semblend.engine.segmented import compute

logger = logging.getLogger("semblend.engine")

MOST_EFFORT = 2
"""How often a chain's tokens are computed at most. Pages may be evicted meanwhile."""


class Promotion:
    """Makes chains exact. `turn` runs on the engine's thread."""

    def __init__(
        self,
        *,
        model: LoadedModel,
        pool: PagedPool,
        prefixes: PrefixCache | None,
        chains: Chains,
        donate: Callable[[ExactKv], None],
        step_tokens: int,
    ) -> None:
        """Each idle step computes `step_tokens` tokens; 0 promotes nothing."""
        self._model = model
        self._pool = pool
        self._prefixes = prefixes
        self._chains = chains
        self._donate = donate
        self._step_tokens = step_tokens
        self.computed_tokens = 0
        """Tokens computed for promotion so far."""

    def turn(self) -> bool:
        """Compute one step for the oldest chain that was continued. False if there is none."""
        if self._prefixes is None or not self._step_tokens:
            return False
        chain = next(iter(self._wanted()), None)
        if chain is None:
            return False
        try:
            return self._advance(chain, self._prefixes)
        except Exception:
            # The chain stays private and usable by its conversation.
            logger.warning("a chain was not promoted", exc_info=True)
            chain.promoted_tokens = MOST_EFFORT * len(chain.tokens)
            return True

    @property
    def waiting(self) -> int:
        """Chains still to be promoted."""
        return len(self._wanted())

    def keep(self, exact: ExactKv) -> None:
        """Publish exact K/V as prefix pages and as a donor."""
        if self._prefixes is not None:
            self._prefixes.publish(exact.share_key, exact.tokens, exact.table.pages)
        self._donate(exact)
        self._chains.became_exact(exact.share_key, exact.tokens)

    def _wanted(self) -> list[Chain]:
        if self._prefixes is None or not self._step_tokens:
            return []
        return [
            chain
            for chain in self._chains.used_again()
            if chain.promoted_tokens < MOST_EFFORT * len(chain.tokens)
        ]

    def _advance(self, chain: Chain, prefixes: PrefixCache) -> bool:
        tokens, key, size = chain.tokens, chain.link.share_key, self._pool.page_size
        shared = prefixes.match(key, tokens)
        start = len(shared) * size
        end = min(len(tokens), start + max(size, self._step_tokens // size * size))
        fresh = None
        try:
            count = self._pool.pages_for(end) - len(shared)
            fresh = take_pages(self._pool.allocator, prefixes, count=count)
            if fresh is None:
                return False
            table = PageTable(pages=np.concatenate((shared, fresh)), page_size=size)
            run = ComputeRun(tokens=tokens[start:end], start=start, table=table)
            compute(self._model, self._pool, [run])
            if end < len(tokens):
                prefixes.publish(key, tokens[:end], table.pages)
            else:
                self.keep(
                    ExactKv(
                        name=chain.request_id,
                        tokens=tokens,
                        table=table,
                        share_key=key,
                        namespace=chain.namespace,
                    )
                )
            chain.promoted_tokens += end - start
            self.computed_tokens += end - start
        finally:
            self._pool.allocator.release(shared)
            if fresh is not None:
                self._pool.allocator.release(fresh)
        return True
