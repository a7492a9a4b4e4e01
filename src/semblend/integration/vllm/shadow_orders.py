"""Shadow sampling, the scheduler's part: which reused requests are also computed cold, and when.

The answer has gone out when a sample is taken. Its request's blocks stay one step longer, in
which the workers read off what reuse made of the first output tokens; the cold computation
then runs in blocks of its own, a piece at a time, in steps in which the engine has nothing
else to do (or, if there are none for a while, between them). The verdicts go to a sequential
test for each namespace, which turns reuse off where the bound is broken.
"""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from semblend.core.tokens import TokenArray
from semblend.integration.vllm.metadata import ShadowOrder, WorkerReport
from semblend.integration.vllm.modes import Execution
from semblend.integration.vllm.request_state import RequestState
from semblend.integration.vllm.setup import SchedulerSetup
from semblend.integration.vllm.stats import SemBlendStats
from semblend.planning.shadow_watch import COMPARED_TOKENS, ShadowWatch

logger = logging.getLogger("vllm.semblend")

QUEUED = 8
"""Samples that may wait; while as many do, no more are taken."""
PATIENCE_S = 10.0
"""How long a sample waits for an idle step before it takes part in a busy one."""
GIVE_UP_S = 120.0
"""A sample that found no free blocks for so long is forgotten."""
CHUNK_TOKENS = 512
"""Tokens of one piece: what a request that arrives meanwhile waits for at most."""
FREE_SHARE = 0.25
"""Share of the cache's blocks that must stay free beside a sample's own."""


@dataclass(slots=True, eq=False)
class _Sample:
    sample_id: int
    request_id: str
    key: bytes
    tokens: TokenArray
    """Prompt and the compared output tokens but the last, int32 [tokens]."""
    compared: int
    warm_blocks: tuple[int, ...]
    since: float
    warm_read: bool = False
    blocks: list[Any] = field(default_factory=list)
    """vLLM's block objects, from its own pool."""
    done: int = 0
    ordered: bool = False


class ShadowOrders:
    """Owns the samples and the blocks they borrow. Called on the scheduler's thread."""

    def __init__(
        self,
        *,
        rate: float,
        block_size: int,
        chunk_tokens: int,
        stats: SemBlendStats,
        watch: ShadowWatch | None = None,
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.watch = ShadowWatch() if watch is None else watch
        self._rate = rate
        self._block_size = block_size
        self._chunk = min(CHUNK_TOKENS, chunk_tokens)
        self._stats = stats
        self._random = random.Random(seed)
        self._clock = clock
        self._serials = itertools.count(1)
        self._samples: deque[_Sample] = deque()
        self._dropped: list[int] = []

    @classmethod
    def start_if_wanted(cls, setup: SchedulerSetup, stats: SemBlendStats) -> ShadowOrders | None:
        """None where nothing approximate is loaded, no model is at hand, or nobody wants it."""
        options, rate = setup.options, setup.settings.shadow_rate
        nested = options.mode.segmented and options.execution is Execution.NESTED
        if not (nested and setup.may_load and rate > 0):
            return None
        return cls(
            rate=rate,
            block_size=setup.block_size,
            chunk_tokens=int(setup.config.scheduler_config.max_num_batched_tokens),
            stats=stats,
        )

    @property
    def waiting(self) -> int:
        """Samples that are not computed yet."""
        return len(self._samples)

    @property
    def has_pending_work(self) -> bool:
        """Whether the engine should step on although nobody waits for an answer."""
        return bool(self._samples)

    def take(self, state: RequestState, key: bytes, block_ids: tuple[int, ...]) -> bool:
        """A reused request ends normally; True if its blocks are needed for one more step."""
        outputs = list(state.request.output_token_ids)
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
                request_id=state.request_id,
                key=key,
                tokens=np.concatenate((state.tokens, behind)).astype(np.int32),
                compared=compared,
                warm_blocks=block_ids,
                since=self._clock(),
            )
        )
        return True

    def orders(self, *, idle: bool, manager: Any) -> list[ShadowOrder]:
        """What the workers compute for samples in the step being built. Never raises."""
        try:
            return [*self._warm_orders(), *self._cold_orders(idle, manager)]
        except Exception:
            # A sample the less is no harm to any request.
            logger.warning("SemBlend gives up its shadow samples", exc_info=True)
            self.clear(manager)
            return []

    def take_dropped(self) -> list[int]:
        """Samples the workers can forget."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def settle(self, report: WorkerReport, manager: Any) -> None:
        """The workers' word on pieces they computed, and on samples that are complete."""
        for sample in list(self._samples):
            if sample.sample_id in report.shadow_failed:
                self._end(sample, manager)
            elif (verdict := report.shadow_verdicts.get(sample.sample_id)) is not None:
                self._end(sample, manager)
                divergence, disagreement = verdict
                self.watch.observe(sample.key, divergence=divergence, disagreement=disagreement)
                self._stats.count("shadow_samples")
                self._stats.value("shadow_divergence", divergence)
                self._stats.value("shadow_disagreement", disagreement)
            elif sample.sample_id in report.shadow_done:
                sample.ordered = False
                if sample.done == len(sample.tokens):
                    self._end(sample, manager)  # no rank had logits to compare

    def clear(self, manager: Any) -> None:
        """Forget all samples."""
        for sample in list(self._samples):
            self._end(sample, manager)

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
                    )
                )
        return orders

    def _cold_orders(self, idle: bool, manager: Any) -> list[ShadowOrder]:
        """One piece of the oldest sample."""
        sample = next(iter(self._samples), None)
        if sample is None or sample.ordered:
            return []
        waited = self._clock() - sample.since
        if not idle and waited < PATIENCE_S:
            return []
        size = len(sample.tokens)
        if not sample.blocks and not self._borrow(sample, manager):
            if idle or waited > GIVE_UP_S:  # idle, and still too large: it never fits
                self._end(sample, manager)
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
            block_ids=tuple(block.block_id for block in sample.blocks),
            compared=sample.compared if end == size else 0,
        )
        sample.done, sample.ordered = end, True
        return [order]

    def _borrow(self, sample: _Sample, manager: Any) -> bool:
        pool = manager.block_pool
        wanted = -(-len(sample.tokens) // self._block_size)
        if pool.get_num_free_blocks() - wanted < FREE_SHARE * pool.num_gpu_blocks:
            return False
        sample.blocks = list(pool.get_new_blocks(wanted))
        return True

    def _end(self, sample: _Sample, manager: Any) -> None:
        self._samples.remove(sample)
        self._dropped.append(sample.sample_id)
        if sample.blocks:
            manager.block_pool.free_blocks(reversed(sample.blocks))
            sample.blocks = []
