"""Continuous batching: each step is one pass over prefills and decodes.

Requests are admitted in order of arrival. A step computes the next token of every decoding request
and up to `step_tokens` prompt tokens, oldest request first. If a pass raises, it is repeated
request by request, so that only the faulty request fails. A request that fails with reused K/V is
first computed again from its tokens.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch

from semblend.core.faults import FaultPoint, reach
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Hole
from semblend.engine.admission import Admission, compute_from_tokens
from semblend.engine.api import FinishReason
from semblend.engine.batch import ComputeRun
from semblend.engine.cache.pool import PagedPool
from semblend.engine.layer_load import PendingLoad, layers_of
from semblend.engine.model import LoadedModel
from semblend.engine.options import EngineOptions
from semblend.engine.output.emission import Emission
from semblend.engine.segmented import compute
from semblend.engine.sequence import Phase, Sequence

logger = logging.getLogger("semblend.engine")

_UNDER_WAY = (Phase.PREFILL, Phase.DECODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """One request's part of a pass."""

    sequence: Sequence
    runs: list[ComputeRun]
    taken: int
    """Number of pending positions these runs cover."""

    @property
    def wants_logits(self) -> bool:
        return self.runs[-1].logit_rows > 0


class Scheduler:
    """Decides what each pass computes. Used by one thread."""

    def __init__(
        self,
        *,
        model: LoadedModel,
        pool: PagedPool,
        options: EngineOptions,
        admission: Admission,
        emission: Emission,
    ) -> None:
        self._model = model
        self._pool = pool
        self._options = options
        self._admission = admission
        self._emission = emission
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def step(self) -> bool:
        """Run one pass. False if there was nothing to compute."""
        self._drop_cancelled()
        self._admit()
        shares = self._choose()
        if not shares:
            return False
        self._compute(shares)
        self.running = [s for s in self.running if s.phase in _UNDER_WAY]
        return True

    def abandon(self, reason: FinishReason, error: str) -> None:
        """End every request, on shutdown or after an error not tied to one request."""
        left = (*self.running, *self.waiting)
        self.running, self.waiting = [], deque()
        for sequence in left:
            try:
                self._emission.finish(sequence, reason, error)
            except Exception:  # the others must still end
                logger.exception("request %s was not ended", sequence.request.request_id)

    def _drop_cancelled(self) -> None:
        for sequence in (*self.running, *self.waiting):
            if sequence.handle.cancelled:
                self._emission.finish(sequence, FinishReason.CANCELLED)
        self.running = [s for s in self.running if s.phase is not Phase.FINISHED]
        self.waiting = deque(s for s in self.waiting if s.phase is not Phase.FINISHED)

    def _admit(self) -> None:
        """Admit requests as long as the next pass has prompt tokens to spare."""
        queued = sum(len(run) for sequence in self.running for run in sequence.pending)
        while (
            self.waiting
            and queued < self._options.step_tokens
            and len(self.running) < self._options.max_running
        ):
            try:
                admitted = self._admission.try_admit(self.waiting[0])
            except Exception as error:
                self._give_up(self.waiting.popleft(), error)
                continue
            if not admitted:
                return  # first in line waits for room; nothing overtakes it
            self.running.append(self.waiting.popleft())
            queued += sum(map(len, self.running[-1].pending))

    def _choose(self) -> list[_Share]:
        shares = [_decode_share(s) for s in self.running if s.phase is Phase.DECODE]
        budget = self._options.step_tokens
        for sequence in self.running:
            if budget and sequence.phase is Phase.PREFILL:
                share = _prefill_share(sequence, budget)
                budget -= share.taken
                shares.append(share)
        return shares

    def _compute(self, shares: list[_Share]) -> None:
        loads = [s.sequence.loading for s in shares if s.sequence.loading is not None]
        try:
            if any(share.sequence.has_borrowed for share in shares):
                reach(FaultPoint.NESTED_PASS)
            runs = [run for share in shares for run in share.runs]
            logits = compute(self._model, self._pool, runs, before_layer=layers_of(loads))
            rows = iter(logits.cpu())
            results = [next(rows) if share.wants_logits else None for share in shares]
        except Exception as error:
            logger.warning("a pass over %d requests failed", len(shares), exc_info=True)
            self._compute_apart(shares, f"{type(error).__name__}: {error}")
            return
        unsound = {id(share) for share in shares if not _is_sound(share.sequence.loading)}
        for share in shares:
            share.sequence.drop_load()
        for share, row in zip(shares, results, strict=True):
            if id(share) in unsound:
                reason = DeclineReason.CORRUPT_DONOR
                self._recover(share.sequence, "donor K/V fails its checksum", reason=reason)
            else:
                self._advance(share, row)

    def _compute_apart(self, shares: list[_Share], error: str) -> None:
        """Recompute the requests of a failed pass one by one, to isolate the faulty one.

        The failed pass used up its loads, so requests with one are computed from tokens.
        """
        if len(shares) == 1:
            self._recover(shares[0].sequence, error)
            return
        for share in shares:
            if share.sequence.loading is not None:
                self._recover(share.sequence, error)
            else:
                self._compute([share])

    def _advance(self, share: _Share, row: torch.Tensor | None) -> None:
        sequence = share.sequence
        if row is not None and not bool(torch.isfinite(row).all()):
            self._recover(sequence, "logits are not finite")
            return
        _consume(sequence.pending, share.taken)
        if row is None:
            return
        try:
            self._emission.token(sequence, row)
        except Exception as error:
            self._give_up(sequence, error)

    def _give_up(self, sequence: Sequence, error: Exception) -> None:
        """Fail one request; the others continue."""
        logger.error("request %s failed", sequence.request.request_id, exc_info=error)
        self._emission.finish(sequence, FinishReason.ERROR, f"{type(error).__name__}: {error}")

    def _recover(
        self,
        sequence: Sequence,
        error: str,
        *,
        reason: DeclineReason = DeclineReason.MATERIALISATION_FAILED,
    ) -> None:
        """Compute the request again from its tokens if it reused anything, else fail it."""
        kind = error.partition(":")[0]  # the rest of the error may contain user data
        if not sequence.has_borrowed:
            logger.error("request %s failed: %s", sequence.request.request_id, kind)
            self._emission.finish(sequence, FinishReason.ERROR, error)
            return
        logger.warning(
            "request %s: the pass over reused K/V failed (%s); computing it from its tokens",
            sequence.request.request_id,
            kind,
        )
        sequence.account.decline(reason, error)
        if sequence.continued_tokens:
            self._admission.withdraw(sequence)
            self.waiting.appendleft(sequence)
        else:
            compute_from_tokens(sequence)


def _is_sound(loading: PendingLoad | None) -> bool:
    """Whether the K/V a pass read is intact, waiting for pending checks."""
    if loading is None:
        return True
    try:
        return loading.is_sound()
    except Exception:
        logger.exception("donor K/V could not be checked")
        return False


def _decode_share(sequence: Sequence) -> _Share:
    if sequence.table is None:  # pragma: no cover - admitted requests have one
        raise RuntimeError("a decoding request has no pages")
    run = ComputeRun(
        tokens=np.asarray(sequence.output_ids[-1:], dtype=np.int32),
        start=sequence.length - 1,
        table=sequence.table,
        logit_rows=1,
    )
    return _Share(sequence=sequence, runs=[run], taken=0)


def _prefill_share(sequence: Sequence, budget: int) -> _Share:
    """The next pending positions of a request, in order, up to `budget`."""
    if sequence.table is None:  # pragma: no cover - admitted requests have one
        raise RuntimeError("a request in prefill has no pages")
    runs: list[ComputeRun] = []
    left = budget
    for hole in sequence.pending:
        end = min(hole.end, hole.start + left)
        runs.append(
            ComputeRun(
                tokens=sequence.tokens_between(hole.start, end),
                start=hole.start,
                table=sequence.table,
                logit_rows=int(end == sequence.length),
            )
        )
        left -= end - hole.start
        if left == 0:
            break
    return _Share(sequence=sequence, runs=runs, taken=budget - left)


def _consume(pending: deque[Hole], count: int) -> None:
    """Remove `count` positions from the front."""
    while count:
        hole = pending.popleft()
        if len(hole) > count:
            pending.appendleft(Hole(hole.start + count, hole.end))
            return
        count -= len(hole)
