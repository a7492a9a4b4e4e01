"""Ordering captures, and what becomes of them: the life of a donor in the scheduler."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from semblend.core.tokens import TokenArray
from semblend.integration.audit import AuditStream
from semblend.integration.vllm import namespaces
from semblend.integration.vllm.bridge import Offer, PlannerBridge
from semblend.integration.vllm.capture_choice import CaptureChoice
from semblend.integration.vllm.metadata import CaptureCommand, WorkerReport
from semblend.integration.vllm.modes import Mode
from semblend.integration.vllm.request_state import RequestState
from semblend.integration.vllm.setup import SchedulerSetup
from semblend.integration.vllm.stats import SemBlendStats

logger = logging.getLogger("vllm.semblend")


@dataclass(slots=True)
class _Pending:
    """A capture on its way: whose blocks it reads, and on how many ranks."""

    request_id: str
    ranks_left: int


class CaptureOrders:
    """Orders the capture of each prompt once, in the step that finishes its prefill."""

    def __init__(
        self,
        *,
        setup: SchedulerSetup,
        bridge: PlannerBridge,
        audit: AuditStream,
        stats: SemBlendStats,
    ) -> None:
        self._setup = setup
        self._bridge = bridge
        self._audit = audit
        self._stats = stats
        self._choice = CaptureChoice(setup.options)
        self._serials = itertools.count(1)
        self._pending: dict[str, _Pending] = {}
        self.share: Callable[[str, TokenArray, bytes], int | None] = _not_shared
        """What a donor being captured is called among other machines, if it is to be shared."""
        self._stopped: str | None = None
        self.finished: list[tuple[str, int]] = []
        """Prompts that the step being built finishes: request and tokens."""

    def stop(self, why: str) -> None:
        """Keep no prompt any more."""
        self._stopped = why

    def is_pending(self, request_id: str) -> bool:
        """Whether some rank still reads a request's blocks."""
        return any(pending.request_id == request_id for pending in self._pending.values())

    def orders(
        self, scheduled: Any, states: Mapping[str, RequestState], manager: Any
    ) -> list[CaptureCommand]:
        """Captures of the prompts that this step finishes computing. Never raises."""
        orders: list[CaptureCommand] = []
        self.finished = []
        running = scheduled.scheduled_cached_reqs
        steps = itertools.chain(
            ((new.req_id, new.num_computed_tokens) for new in scheduled.scheduled_new_reqs),
            zip(running.req_ids, running.num_computed_tokens, strict=True),
        )
        for request_id, computed in steps:
            state = states.get(request_id)
            if state is None or state.capture_issued:
                continue
            if computed + scheduled.num_scheduled_tokens[request_id] < len(state.tokens):
                continue
            state.capture_issued = True
            self.finished.append((request_id, len(state.tokens)))
            try:
                order = self._order(state, manager)
            except Exception as error:
                # A donor the less; this step's loads must reach the workers all the same.
                logger.warning("SemBlend did not keep %s: %s", request_id, error)
                self._audit.event("donor_registration_failed", request_id, reason=repr(error))
                continue
            if order is not None:
                orders.append(order)
        return orders

    def settle(self, report: WorkerReport) -> None:
        """Register what every rank has stored; drop what one rank has not, or has lost."""
        for donor_id, ranks in report.captured.items():
            offer = self._bridge.stored(donor_id, ranks)
            if offer is not None:
                self._registered(offer)
                self._audit_cost(offer, report)
        for donor_id, why in report.rejected.items():
            self._bridge.drop(donor_id)
            pending = self._pending.get(donor_id)
            request_id = None if pending is None else pending.request_id
            self._audit.event("donor_registration_failed", request_id, reason=why)
        for donor_id in report.lost:
            self._bridge.drop(donor_id)
            self._audit.event("donor_lost", donor_id=donor_id)
        for donor_id, ranks in report.answered.items():
            pending = self._pending.get(donor_id)
            if pending is not None:
                pending.ranks_left -= ranks
                if pending.ranks_left <= 0:
                    del self._pending[donor_id]

    def _order(self, state: RequestState, manager: Any) -> CaptureCommand | None:
        skip = self._stopped or self._choice.skip_reason(state, pending=self._bridge.pending)
        if skip is None and self._bridge.is_held(state.tokens, state.namespace):
            skip = "already_held"
        if skip is not None:
            if skip == "capture_write_queue_full":
                self._stats.count("captures_skipped")
            self._audit.event("donor_registration_skipped", state.request_id, reason=skip)
            return None
        blocks = -(-len(state.tokens) // self._setup.block_size)
        offer = Offer(
            donor_id=f"{state.request_id}.{next(self._serials)}",
            request_id=state.request_id,
            tokens=state.tokens,
            namespace=state.namespace,
            blocks=blocks,
        )
        if not self._may_load:
            if self._bridge.register_at_once(offer):
                self._registered(offer)
            return None
        (block_ids,) = manager.get_block_ids(state.request_id)
        share_key = self._bridge.pipeline.share_key(state.namespace)
        self._bridge.offer(offer)
        self._pending[offer.donor_id] = _Pending(state.request_id, self._setup.ranks)
        return CaptureCommand(
            request_id=state.request_id,
            donor_id=offer.donor_id,
            block_ids=tuple(block_ids[:blocks]),
            tokens=state.tokens,
            share_key=share_key,
            shared_as=self.share(offer.donor_id, offer.tokens, share_key),
        )

    @property
    def _may_load(self) -> bool:
        """Whether K/V that is kept may be loaded; a certificate may run out under the engine."""
        certified = self._setup.options.mode is not Mode.SEGMENTED or self._bridge.certified
        return self._setup.may_load and certified

    def _registered(self, offer: Offer) -> None:
        self._stats.count("donors_registered")
        self._audit.donor_registered(
            offer.request_id,
            donor_id=offer.donor_id,
            namespace=namespaces.shown(offer.namespace),
            tokens=len(offer.tokens),
            blocks=offer.blocks,
        )

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


def _not_shared(donor_id: str, tokens: TokenArray, share_key: bytes) -> int | None:
    return None
