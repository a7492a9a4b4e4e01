"""Orders captures and follows them: the life of a donor in the scheduler."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from semblend.core.namespace import Namespace
from semblend.core.tokens import TokenArray
from semblend.integration.auditing.audit_stream import AuditStream
from semblend.integration.loaded_model import model_identity
from semblend.integration.scheduler.capture_choice import QUEUE_FULL, skip_reason
from semblend.integration.scheduler.engine_planner import EnginePlanner, Offer
from semblend.integration.scheduler.orders import CaptureCommand, WorkerReport
from semblend.integration.scheduler.rank_room import RankRoom
from semblend.integration.scheduler.request import Request
from semblend.integration.scheduler.setup import SchedulerSetup
from semblend.integration.stats import Stats

logger = logging.getLogger("semblend.adapter")


@dataclass(slots=True)
class _Pending:
    """A capture in progress: whose blocks it reads, and on how many ranks."""

    request_id: str
    ranks_left: int


class Captures:
    """Orders captures: of each prompt once, in the step that finishes its prefill; of an answer
    that is worth it, when the request ends.

    Only exact K/V is captured: of a request that reused K/V, the part before it.
    """

    def __init__(
        self,
        *,
        setup: SchedulerSetup,
        planner: EnginePlanner,
        audit: AuditStream,
        stats: Stats,
        blocks_of: Callable[[str], tuple[int, ...]],
        register: Callable[[Offer], bool],
        share: Callable[[str, TokenArray, bytes], int | None],
        room: RankRoom,
    ) -> None:
        """Start with nothing pending.

        Parameters
        ----------
        blocks_of
            The blocks that hold a live request's K/V.
        register
            Makes a donor that every rank has stored available for lookup.
        share
            The fleet-wide name of a donor being captured, if it is shared.
        room
            Whether the ranks have room for a donor.
        """
        self._setup = setup
        self._planner = planner
        self._audit = audit
        self._stats = stats
        self._blocks_of = blocks_of
        self._register = register
        self._share = share
        self._room = room
        # Decided once: a certificate may expire, and a clock that jumps may bring it back. Donors
        # registered without K/V meanwhile would be planned with, and every such load would fail.
        self._certified = planner.allows_loads
        self._serials = itertools.count(1)
        self._pending: dict[str, _Pending] = {}
        self._unsent: list[CaptureCommand] = []
        """Captures for the next step: of requests that have ended, until it is built."""
        self._stopped: str | None = None
        self.finished: list[tuple[str, int]] = []
        """Prompts that the step being built finishes: request and tokens."""

    def stop(self, why: str) -> None:
        """Stop keeping prompts."""
        self._stopped = why

    def is_pending(self, request_id: str) -> bool:
        """Whether some rank still reads a request's blocks."""
        return any(pending.request_id == request_id for pending in self._pending.values())

    @property
    def reading(self) -> set[str]:
        """Requests whose blocks are still being read by some rank."""
        return {pending.request_id for pending in self._pending.values()}

    def drop_unsent(self) -> None:
        """The blocks of requests that have ended are taken back: what no rank reads yet is lost."""
        unsent, self._unsent = self._unsent, []
        for command in unsent:
            del self._pending[command.donor_id]
            self._planner.drop(command.donor_id)
            self._room.copied(command.donor_id)

    def orders(
        self, computes: Iterable[tuple[str, int]], requests: Mapping[str, Request[Any]]
    ) -> list[CaptureCommand]:
        """Captures of the prompts that this step finishes computing.

        `computes` are requests and how many of their tokens have K/V once the step is done.
        """
        self.finished = []
        for request_id, computed in computes:
            request = requests.get(request_id)
            if request is None or computed < len(request.tokens) or not request.decide_capture():
                continue
            self.finished.append((request_id, len(request.tokens)))
            order = self._try_order(request, request.tokens[: request.exact_until])
            if order is not None:
                self._unsent.append(order)
        orders, self._unsent = self._unsent, []
        return orders

    def ended(self, request: Request[Any], block_ids: Sequence[int]) -> None:
        """A request ends: keep its answer too, if all of it is exact and long enough to be found.

        The last token has no K/V.
        """
        outputs = request.handle.output_tokens
        if (
            request.tainted
            or not request.is_capture_decided
            or len(outputs) <= self._setup.settings.min_span_tokens
            or not request.handle.ended_normally
        ):
            return
        answer = np.asarray(outputs[:-1], dtype=np.int32)
        tokens = np.concatenate((request.tokens, answer))
        order = self._try_order(request, tokens, tuple(block_ids))
        if order is not None:
            self._unsent.append(order)

    def promoted(
        self, name: str, tokens: TokenArray, namespace: Namespace, block_ids: tuple[int, ...]
    ) -> None:
        """Keep K/V that was computed exactly in idle steps."""
        if self._stopped is not None or self._planner.pending >= self._setup.capture.queue:
            return
        offer = Offer(
            donor_id=f"{name}.{next(self._serials)}",
            request_id=name,
            tokens=tokens,
            namespace=namespace,
            blocks=len(block_ids),
        )
        if self._planner.offer(offer) and (command := self._sent(offer, block_ids)) is not None:
            self._unsent.append(command)

    def _try_order(
        self,
        request: Request[Any],
        tokens: TokenArray,
        block_ids: tuple[int, ...] | None = None,
    ) -> CaptureCommand | None:
        try:
            return self._order(request, tokens, block_ids)
        except Exception as error:
            # Losing a donor is harmless; this step's loads must still reach the workers.
            logger.warning("SemBlend did not keep %s: %s", request.request_id, error)
            self._audit.event("donor_registration_failed", request.request_id, reason=repr(error))
            return None

    def settle(self, report: WorkerReport) -> None:
        """Register what every rank has stored; drop what any rank has not stored, or has lost."""
        try:
            self._settle_donors(report)
        finally:
            self._settle_reads(report)

    def _settle_donors(self, report: WorkerReport) -> None:
        for donor_id, ranks in report.captured.items():
            offer = self._planner.stored(donor_id, ranks)
            if offer is not None and self._registered(offer):
                self._audit_cost(offer, report)
        for donor_id, why in report.rejected.items():
            self._planner.drop(donor_id)
            pending = self._pending.get(donor_id)
            request_id = None if pending is None else pending.request_id
            self._audit.event("donor_registration_failed", request_id, reason=why)
        for donor_id in report.lost:
            self._planner.drop(donor_id)
            self._audit.event("donor_lost", donor_id=donor_id)

    def _settle_reads(self, report: WorkerReport) -> None:
        for donor_id, ranks in report.answered.items():
            pending = self._pending.get(donor_id)
            if pending is not None:
                pending.ranks_left -= ranks
                if pending.ranks_left <= 0:
                    del self._pending[donor_id]
                    self._room.copied(donor_id)

    def _order(
        self, request: Request[Any], tokens: TokenArray, block_ids: tuple[int, ...] | None
    ) -> CaptureCommand | None:
        skip = self._stopped or skip_reason(
            request, self._setup.capture, tokens=len(tokens), pending=self._planner.pending
        )
        blocks = -(-len(tokens) // self._setup.block_size)
        offer = Offer(
            donor_id=f"{request.request_id}.{next(self._serials)}",
            request_id=request.request_id,
            tokens=tokens,
            namespace=request.namespace,
            blocks=blocks,
        )
        if skip is None and not self._planner.offer(offer):
            skip = "already_held"
        if skip is not None:
            if skip == QUEUE_FULL:
                self._stats.count("captures_skipped")
            self._skipped(request, skip)
            return None
        if not (self._setup.may_load and self._certified):
            # Discovery needs only its tokens; its K/V is not kept.
            if self._planner.stored(offer.donor_id, self._setup.ranks) is not None:
                self._registered(offer)
            return None
        command = self._sent(offer, block_ids)
        if command is None:
            self._skipped(request, "no_capacity")
        return command

    def _sent(self, offer: Offer, block_ids: tuple[int, ...] | None) -> CaptureCommand | None:
        try:
            command = self._command(offer, block_ids)
        except Exception:
            self._planner.drop(offer.donor_id)
            raise
        if command is None:
            self._planner.drop(offer.donor_id)
            return None
        self._pending[offer.donor_id] = _Pending(offer.request_id, self._setup.ranks)
        return command

    def _skipped(self, request: Request[Any], reason: str) -> None:
        self._audit.event("donor_registration_skipped", request.request_id, reason=reason)

    def _command(self, offer: Offer, block_ids: tuple[int, ...] | None) -> CaptureCommand | None:
        """The order to keep what is offered; None if the ranks have no room for it."""
        share_key = self._planner.pipeline.share_key(offer.namespace)
        if block_ids is None:
            block_ids = self._blocks_of(offer.request_id)
        kept, evicted = self._room.admit(offer, share_key)
        for donor_id in evicted:
            self._planner.drop(donor_id)
        if not kept:
            return None
        return CaptureCommand(
            request_id=offer.request_id,
            donor_id=offer.donor_id,
            block_ids=block_ids[: offer.blocks],
            tokens=offer.tokens,
            share_key=share_key,
            shared_as=self._share(offer.donor_id, offer.tokens, share_key),
        )

    def _registered(self, offer: Offer) -> bool:
        if not self._register(offer):
            return False
        self._stats.count("donors_registered")
        self._audit.donor_registered(
            offer.request_id,
            donor_id=offer.donor_id,
            namespace=model_identity.shown(self._setup.engine, offer.namespace),
            tokens=len(offer.tokens),
            blocks=offer.blocks,
        )
        return True

    def _audit_cost(self, offer: Offer, report: WorkerReport) -> None:
        elapsed_ms = report.capture_ms.get(offer.donor_id, 0.0)
        copied = report.capture_bytes.get(offer.donor_id, 0)
        self._stats.time("capture", elapsed_ms / 1e3)
        self._stats.count("capture_bytes", copied)
        self._audit.event(
            "donor_capture_cost",
            offer.request_id,
            capture_ms=elapsed_ms,
            copy_bytes=copied,
            layers=report.layers,
            store_tier="host",
        )
