"""Donors in an engine's own prefix tree come and go beside its scheduler.

Fingerprinting long prompts takes milliseconds, so one thread takes, in order, what the scheduler
saw: prompts that the tree now holds, and slots that the tree has let go of. A tree drops leaves
first, so the slot of a donor's last token is freed before any other of its slots: with it, the
donor is gone.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from semblend.core.faults import FaultPoint, reach
from semblend.core.tokens import TokenIds
from semblend.integration.auditing.audit_stream import AuditStream
from semblend.integration.loaded_model import model_identity
from semblend.integration.provider import DonorRecord, SemBlendProvider
from semblend.integration.scheduler.capture_choice import QUEUE_FULL, skip_reason
from semblend.integration.scheduler.request import Request
from semblend.integration.scheduler.setup import CaptureRules
from semblend.integration.stats import Stats

logger = logging.getLogger("semblend.adapter")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Offer:
    """A prompt whose exact K/V the tree holds."""

    tokens: TokenIds
    request_id: str
    extra_key: str | None
    cache_salt: str | None
    last_slot: torch.Tensor
    """int []: where the tree holds the K/V of the last token."""


Freed = Sequence[torch.Tensor]
"""int64 [slots] each."""


class DonorQueue:
    """A queue and its thread."""

    def __init__(
        self,
        provider: SemBlendProvider,
        *,
        engine: str,
        rules: CaptureRules,
        audit: AuditStream,
        stats: Stats,
    ) -> None:
        self._provider = provider
        self._engine = engine
        self._rules = rules
        self._audit = audit
        self._stats = stats
        self._inbox: queue.Queue[Offer | Freed] = queue.Queue()
        self._donor_at: dict[int, str] = {}
        """Slot of a donor's last token to the donor."""
        threading.Thread(target=self._work, name="semblend-donors", daemon=True).start()

    def keep(
        self,
        request: Request[Any],
        tokens: TokenIds,
        *,
        extra_key: str | None,
        cache_salt: str | None,
        last_slot: torch.Tensor,
    ) -> bool:
        """Put a request's prompt in line, once, if it may be a donor. Never waits.

        `last_slot`, int [], is where the tree holds the K/V of the last token.
        """
        if request.is_capture_decided:
            return False
        return self._line_up(request, tokens, extra_key, cache_salt, last_slot)

    def keep_answer(
        self,
        request: Request[Any],
        tokens: TokenIds,
        *,
        extra_key: str | None,
        cache_salt: str | None,
        last_slot: torch.Tensor,
    ) -> bool:
        """The same for prompt and answer of a request that has ended, if its prompt was decided."""
        if not request.is_capture_decided:
            return False
        return self._line_up(request, tokens, extra_key, cache_salt, last_slot)

    def _line_up(
        self,
        request: Request[Any],
        tokens: TokenIds,
        extra_key: str | None,
        cache_salt: str | None,
        last_slot: torch.Tensor,
    ) -> bool:
        # The tree gives a donor's slots away from its last token on: all of it must be exact.
        skip = (
            "approximate"
            if request.tainted
            else skip_reason(request, self._rules, tokens=len(tokens), pending=self.waiting)
        )
        if skip == QUEUE_FULL:  # it may be asked for again
            self._stats.count("donors_skipped")
            return False
        request.decide_capture()
        if skip is not None:
            self._audit.event("donor_registration_skipped", request.request_id, reason=skip)
            return False
        self._inbox.put(
            Offer(
                tokens=tokens,
                request_id=request.request_id,
                extra_key=extra_key,
                cache_salt=cache_salt,
                last_slot=last_slot.clone(),  # engines use their tables again
            )
        )
        return True

    @property
    def waiting(self) -> int:
        """How many are in line."""
        return self._inbox.qsize()

    def freed(self, slots: Freed) -> None:
        """The tree has let go of these slots. Never waits."""
        if self._donor_at or not self._inbox.empty():
            self._inbox.put(slots)

    def clear(self) -> None:
        """Forget whoever is in line; returns when the thread holds nothing either."""
        try:
            while True:
                self._inbox.get_nowait()
                self._inbox.task_done()
        except queue.Empty:
            self.wait()
        self._donor_at.clear()

    def wait(self) -> None:
        """Until everybody in line was served."""
        self._inbox.join()

    def _work(self) -> None:
        while True:
            item = self._inbox.get()
            try:
                if isinstance(item, Offer):
                    self._register(item)
                else:
                    self._drop(item)
            except BaseException:  # a thread the less, and a flush would wait for ever
                logger.warning("SemBlend could not follow the tree", exc_info=True)
            finally:
                self._inbox.task_done()

    def _register(self, offer: Offer) -> None:
        reach(FaultPoint.KILLED_WORKER)
        record = self._provider.register_donor(
            offer.tokens,
            request_id=offer.request_id,
            extra_key=offer.extra_key,
            cache_salt=offer.cache_salt,
        )
        if record is not None:
            self._donor_at[_numbers([offer.last_slot])[0]] = record.donor_id
            self._registered(offer, record)

    def _registered(self, offer: Offer, record: DonorRecord) -> None:
        self._stats.count("donors_registered")
        namespace = self._provider.namespace_of(offer.extra_key, offer.cache_salt)
        self._audit.donor_registered(
            offer.request_id,
            donor_id=record.donor_id,
            namespace=model_identity.shown(self._engine, namespace),
            tokens=len(record.tokens),
            blocks=self._provider.pages(len(record.tokens)),
        )

    def _drop(self, freed: Freed) -> None:
        for slot in _numbers(freed):
            donor_id = self._donor_at.pop(slot, None)
            if donor_id is not None and self._provider.donor(donor_id) is not None:
                self._provider.forget(donor_id)
                self._stats.count("donors_evicted")


def _numbers(slots: Sequence[torch.Tensor]) -> list[int]:
    """The numbers of slots, [*] each; waits for the device here rather than in the scheduler."""
    if not slots:
        return []
    if slots[0].is_cuda:
        torch.cuda.synchronize(slots[0].device)
    # One read from the device, however many nodes the tree has dropped.
    numbers: list[int] = torch.cat([each.reshape(-1) for each in slots]).tolist()
    return numbers
