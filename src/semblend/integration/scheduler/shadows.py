"""Shadow sampling, the scheduler's part: which reused requests are also computed cold, and when.

The answer has been sent when a sample is taken. Its request's blocks stay one step longer, in
which the workers read the distributions of the first output tokens over reused K/V. The cold
computation then runs in its own blocks, a piece at a time, in steps in which the engine has
nothing else to do (or, if there are none for a while, in busy ones). The verdicts go to a
sequential test per namespace, which turns reuse off where the bound is broken.
"""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from semblend.core.tokens import TokenArray
from semblend.integration.lora_adapter import LoraAdapter
from semblend.integration.scheduler.orders import ShadowOrder, WorkerReport
from semblend.integration.scheduler.port import EngineRequest, Loan, SchedulerPort
from semblend.integration.scheduler.request import Request
from semblend.integration.stats import Stats
from semblend.planning.shadow_watch import COMPARED_TOKENS, ShadowWatch

logger = logging.getLogger("semblend.adapter")

QUEUED = 8
"""Samples that may wait; while this many do, no more are taken."""
PATIENCE_S = 10.0
"""How long a sample waits for an idle step before it joins a busy one."""
GIVE_UP_S = 120.0
"""A sample that finds no free blocks for this long is dropped."""
CHUNK_TOKENS = 512
"""Tokens of one piece: the most that a request arriving meanwhile waits for."""
FREE_SHARE = 0.25
"""Share of the cache's blocks that must stay free beside a sample's own."""


@dataclass(slots=True, eq=False)
class _Sample:
    sample_id: int
    request_id: str
    handle: EngineRequest
    adapter: LoraAdapter | None
    kept: bool
    """Whether others may use what is computed for it."""
    key: bytes
    tokens: TokenArray
    """Prompt and the compared output tokens except the last, int32 [tokens]."""
    compared: int
    warm_blocks: tuple[int, ...]
    since: float
    warm_read: bool = False
    loan: Loan | None = None
    """Blocks of the engine's own pool, for the cold computation."""
    done: int = 0
    ordered: bool = False


KeepSample = Callable[[EngineRequest, TokenArray, Loan], None]
"""Given a request, a sample's tokens and the blocks with their K/V, computed cold."""


def _not_kept(handle: EngineRequest, tokens: TokenArray, loan: Loan) -> None:
    pass


class ShadowOrders:
    """Owns the samples and the blocks they borrow. Called on the scheduler's thread."""

    def __init__(
        self,
        *,
        port: SchedulerPort[Any, Any],
        rate: float,
        block_size: int,
        chunk_tokens: int,
        stats: Stats,
        keep: KeepSample = _not_kept,
        watch: ShadowWatch | None = None,
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.watch = ShadowWatch() if watch is None else watch
        self._port = port
        self._rate = rate
        self._block_size = block_size
        self._chunk = min(CHUNK_TOKENS, chunk_tokens)
        self._stats = stats
        self._keep = keep
        self._random = random.Random(seed)
        self._clock = clock
        self._serials = itertools.count(1)
        self._samples: deque[_Sample] = deque()
        self._dropped: list[int] = []

    @property
    def waiting(self) -> int:
        """Samples that are not computed yet."""
        return len(self._samples)

    @property
    def has_pending_work(self) -> bool:
        """Whether the engine should keep stepping although no request waits for an answer."""
        return bool(self._samples)

    def take(self, request: Request[EngineRequest], key: bytes, block_ids: tuple[int, ...]) -> bool:
        """A reused request ends normally; True if its blocks are needed for one more step."""
        outputs = list(request.handle.output_tokens)
        compared = min(COMPARED_TOKENS, len(outputs))
        if (
            not compared
            or len(self._samples) >= QUEUED
            or self.watch.objection(key) is not None
            or self._random.random() >= self._rate
        ):
            return False
        behind = np.asarray(outputs[: compared - 1], dtype=np.int32)
        self._samples.append(
            _Sample(
                sample_id=next(self._serials),
                request_id=request.request_id,
                handle=request.handle,
                adapter=request.arrival.adapter,
                kept=request.arrival.wants_capture is not False,
                key=key,
                tokens=np.concatenate((request.tokens, behind)).astype(np.int32),
                compared=compared,
                warm_blocks=block_ids,
                since=self._clock(),
            )
        )
        return True

    def orders(self, *, idle: bool) -> list[ShadowOrder]:
        """What the workers compute for samples in the step being built. Never raises."""
        try:
            return [*self._warm_orders(), *self._cold_orders(idle)]
        except Exception:
            # Losing a sample harms no request.
            logger.warning("SemBlend gives up its shadow samples", exc_info=True)
            self.clear()
            return []

    def take_dropped(self) -> list[int]:
        """Samples the workers can forget."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def settle(self, report: WorkerReport) -> None:
        """Take the workers' report on computed pieces and completed samples."""
        for sample in list(self._samples):
            if sample.sample_id in report.shadow_failed:
                self._end(sample)
            elif (verdict := report.shadow_verdicts.get(sample.sample_id)) is not None:
                if sample.kept and sample.loan is not None:
                    self._keep(sample.handle, sample.tokens, sample.loan)
                self._end(sample)
                divergence, disagreement = verdict
                self.watch.observe(sample.key, divergence=divergence, disagreement=disagreement)
                self._stats.count("shadow_samples")
                self._stats.value("shadow_divergence", divergence)
                self._stats.value("shadow_disagreement", disagreement)
            elif sample.sample_id in report.shadow_done:
                sample.ordered = False
                if sample.done == len(sample.tokens):
                    self._end(sample)  # no rank had logits to compare

    def clear(self) -> None:
        """Forget all samples."""
        for sample in list(self._samples):
            self._end(sample)

    def _warm_orders(self) -> list[ShadowOrder]:
        """Their blocks are freed with this step, so this cannot wait."""
        orders = []
        for sample in self._samples:
            if not sample.warm_read:
                sample.warm_read = True
                orders.append(
                    ShadowOrder(
                        sample_id=sample.sample_id,
                        request_id=sample.request_id,
                        tokens=sample.tokens,
                        start=len(sample.tokens) - sample.compared,
                        end=len(sample.tokens),
                        block_ids=sample.warm_blocks,
                        compared=sample.compared,
                        warm=True,
                        adapter=sample.adapter,
                    )
                )
        return orders

    def _cold_orders(self, idle: bool) -> list[ShadowOrder]:
        """One piece of the oldest sample."""
        sample = next(iter(self._samples), None)
        if sample is None or sample.ordered:
            return []
        waited = self._clock() - sample.since
        if not idle and waited < PATIENCE_S:
            return []
        size = len(sample.tokens)
        if sample.loan is None:
            sample.loan = self._port.borrow(-(-size // self._block_size), keep_free=FREE_SHARE)
        if sample.loan is None:
            if idle or waited > GIVE_UP_S:  # idle, and still too large: it never fits
                self._end(sample)
            return []
        end = min(size, sample.done + self._chunk)
        if end < size:
            # The compared tokens stay together, in the last piece.
            end = max(sample.done + 1, min(end, size - sample.compared))
        order = ShadowOrder(
            sample_id=sample.sample_id,
            request_id=sample.request_id,
            tokens=sample.tokens,
            start=sample.done,
            end=end,
            block_ids=sample.loan.block_ids,
            compared=sample.compared if end == size else 0,
            adapter=sample.adapter,
        )
        sample.done, sample.ordered = end, True
        return [order]

    def _end(self, sample: _Sample) -> None:
        self._samples.remove(sample)
        self._dropped.append(sample.sample_id)
        if sample.loan is not None:
            self._port.give_back(sample.loan)
            sample.loan = None
