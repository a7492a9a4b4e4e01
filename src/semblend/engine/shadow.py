"""Shadow sampling: some reused requests are also computed cold when the engine is idle.

The answer has long been sent. The comparison is between next-token distributions at the first
output tokens: over reused K/V, and computed cold after the same tokens. A sequential test watches
each namespace's disagreement. If it exceeds the bound, reuse is turned off there until an operator
turns it on again.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from semblend.core.namespace import Namespace
from semblend.core.tokens import TokenArray
from semblend.engine.batch import ComputeRun
from semblend.engine.cache.exact_kv import ExactKv
from semblend.engine.cache.pages import PageTable
from semblend.engine.cache.pool import PagedPool
from semblend.engine.cache.prefix_cache import PrefixCache, take_pages
from semblend.engine.model import LoadedModel
from semblend.engine.segmented import compute
from semblend.engine.sequence import Sequence
from semblend.planning.shadow_watch import (
    COMPARED_TOKENS,
    DISAGREEMENT_BOUND,
    ShadowStats,
    ShadowWatch,
)

logger = logging.getLogger("semblend.shadow")

QUEUED = 8
"""Samples that may wait. While the queue is full, no more are taken."""
PATIENCE_S = 10.0
"""How long a sample waits for idle time before it takes one pass between two steps."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Sample:
    key: bytes
    tokens: TokenArray
    """Prompt and all but the last of the compared output tokens, shape [tokens]."""
    warm: torch.Tensor
    """Log-probabilities over reused K/V, [compared, vocabulary]."""
    request_id: str
    namespace: Namespace | None
    """None if its request leaves nothing behind."""
    since: float = field(default_factory=time.monotonic)
    table: PageTable | None = None
    done: int = 0


class Shadow:
    """Takes samples, computes them cold and judges them. `turn` runs on the engine's thread."""

    def __init__(
        self,
        *,
        model: LoadedModel,
        pool: PagedPool,
        rate: float,
        step_tokens: int,
        prefixes: PrefixCache | None = None,
        bound: float = DISAGREEMENT_BOUND,
        seed: int | None = None,
    ) -> None:
        self._model = model
        self._pool = pool
        self._prefixes = prefixes
        self._rate = rate
        self._step_tokens = step_tokens
        self.watch = ShadowWatch(bound=bound)
        self.keep: Callable[[ExactKv], None] | None = None
        """Receives the exactly computed K/V of samples."""
        self._random = random.Random(seed)
        self._open: dict[str, list[torch.Tensor]] = {}
        self._queue: deque[_Sample] = deque()

    # -- while a request runs ---------------------------------------------------------

    def observe(self, sequence: Sequence, logits: torch.Tensor) -> None:
        """Record one output token's logits, [vocabulary], before the token is chosen."""
        if not sequence.tainted or sequence.share_key is None:
            return
        request_id = sequence.request.request_id
        if not sequence.output_ids:
            if len(self._queue) >= QUEUED or self._random.random() >= self._rate:
                return
            self._open[request_id] = []
        seen = self._open.get(request_id)
        if seen is not None and len(seen) < COMPARED_TOKENS:
            seen.append(logits.float().log_softmax(-1).cpu())

    def ended(self, sequence: Sequence) -> None:
        """Queue the finished request's sample, or drop it."""
        seen = self._open.pop(sequence.request.request_id, None)
        if not seen or not sequence.tainted or sequence.share_key is None:
            return
        behind = np.asarray(sequence.output_ids[: len(seen) - 1], dtype=np.int32)
        self._queue.append(
            _Sample(
                key=sequence.share_key,
                tokens=np.concatenate((sequence.request.tokens, behind)).astype(np.int32),
                warm=torch.stack(seen),
                request_id=sequence.request.request_id,
                namespace=sequence.request.namespace if sequence.request.donate else None,
            )
        )

    # -- when there is time -------------------------------------------------------------

    def turn(self, *, busy: bool) -> bool:
        """Compute one pass of the oldest sample. False if there was nothing to do."""
        if not self._queue:
            return False
        sample = self._queue[0]
        if busy and time.monotonic() - sample.since < PATIENCE_S:
            return False
        try:
            return self._advance(sample)
        except Exception:
            # Losing a sample harms no request.
            logger.warning("a shadow sample failed and is dropped", exc_info=True)
            self._drop(sample)
            return True

    def _advance(self, sample: _Sample) -> bool:
        size = len(sample.tokens)
        if sample.table is None:
            count = self._pool.pages_for(size)
            pages = take_pages(self._pool.allocator, self._prefixes, count=count)
            if pages is None:
                return False
            sample.table = PageTable(pages=pages, page_size=self._pool.page_size)
        compared = len(sample.warm)
        end = min(size, sample.done + self._step_tokens)
        if end < size:
            # Keep the compared tokens together, in the last pass.
            end = max(sample.done + 1, min(end, size - compared))
        run = ComputeRun(
            tokens=sample.tokens[sample.done : end],
            start=sample.done,
            table=sample.table,
            logit_rows=compared if end == size else 0,
        )
        logits = compute(self._model, self._pool, [run], replay=False)
        sample.done = end
        if end == size:
            self._keep(sample)
            self._drop(sample)
            self._judge(sample, logits.float().log_softmax(-1).cpu())
        return True

    def _keep(self, sample: _Sample) -> None:
        """Publish the sample's K/V, which was computed exactly."""
        if self.keep is None or sample.namespace is None or sample.table is None:
            return
        try:
            self.keep(
                ExactKv(
                    name=sample.request_id,
                    tokens=sample.tokens,
                    table=sample.table,
                    share_key=sample.key,
                    namespace=sample.namespace,
                )
            )
        except Exception:
            logger.warning("the K/V of a shadow sample was not kept", exc_info=True)

    def _drop(self, sample: _Sample) -> None:
        if sample in self._queue:
            self._queue.remove(sample)
        if sample.table is not None:
            self._pool.allocator.release(sample.table.pages)
            sample.table = None

    def _judge(self, sample: _Sample, cold: torch.Tensor) -> None:
        kl = float((cold.exp() * (cold - sample.warm)).sum(-1).clamp(min=0.0).mean())
        differs = float((cold.argmax(-1) != sample.warm.argmax(-1)).float().mean())
        self.watch.observe(sample.key, divergence=kl, disagreement=differs)

    # -- for those who ask ----------------------------------------------------------------

    def objection(self, key: bytes | None) -> str | None:
        """Why reuse is off in a namespace, or None."""
        return self.watch.objection(key)

    def resume(self, key: bytes | None = None) -> int:
        """Turn reuse on again in one namespace, or all. Returns how many had it off."""
        return self.watch.resume(key)

    @property
    def waiting(self) -> int:
        """Samples not computed yet."""
        return len(self._queue)

    def stats(self) -> ShadowStats:
        return self.watch.stats()

    def close(self) -> None:
        """Drop all samples and release their pages. Call after the engine's thread has ended."""
        for sample in tuple(self._queue):
            self._drop(sample)
        self._open.clear()
