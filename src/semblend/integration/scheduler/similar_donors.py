"""Donors of similar meaning, found on a separate thread and reported as evidence.

Embedding takes milliseconds, so it never happens in the scheduler's loop: finished
prompts are queued here, decoded, embedded and looked up. What is found is written to
the audit stream; no K/V is ever loaded because of it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from semblend.core.namespace import Namespace
from semblend.core.tokens import TokenArray
from semblend.integration.auditing.audit_stream import AuditStream
from semblend.integration.scheduler.engine_planner import EnginePlanner, Offer
from semblend.integration.scheduler.setup import Decoder

logger = logging.getLogger("semblend.adapter")

_QUEUED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class _LookUp:
    request_id: str
    tokens: TokenArray
    namespace: Namespace


class MeaningThread:
    """Embeds donors' texts and looks up prompts by meaning. Never blocks its callers."""

    def __init__(
        self, *, planner: EnginePlanner, audit: AuditStream, make_decoder: Callable[[], Decoder]
    ) -> None:
        self.skipped = 0
        """Prompts skipped because the queue was full."""
        self._planner = planner
        self._audit = audit
        self._make_decoder = make_decoder
        self._queue: queue.Queue[Offer | _LookUp | None] = queue.Queue(maxsize=_QUEUED)
        self._thread = threading.Thread(target=self._run, name="semblend-meaning", daemon=True)
        self._thread.start()

    def register(self, offer: Offer) -> bool:
        """Queue a donor and its text; if the queue is full, register it now without the text."""
        return self._put(offer) or self._planner.register(offer)

    def look_up(self, request_id: str, tokens: TokenArray, namespace: Namespace) -> None:
        """Report donors whose meaning is near this prompt's."""
        self._put(_LookUp(request_id=request_id, tokens=tokens, namespace=namespace))

    def wait(self) -> None:
        """Wait until everything queued so far has been processed."""
        self._queue.join()

    def close(self) -> None:
        """Stop once the queue is empty. Idempotent."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _put(self, item: Offer | _LookUp) -> bool:
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self.skipped += 1
            return False
        return True

    def _run(self) -> None:
        decode: Decoder | None = None
        while (item := self._queue.get()) is not None:
            try:
                decode = decode or self._make_decoder()
                if isinstance(item, Offer):
                    self._planner.register(item, text=decode(item.tokens))
                else:
                    self._report(item, decode)
            except Exception as error:
                logger.warning("SemBlend could not look at a prompt's meaning: %s", error)
            finally:
                self._queue.task_done()
        self._queue.task_done()

    def _report(self, item: _LookUp, decode: Decoder) -> None:
        match = self._planner.pipeline.find_donor(
            item.tokens, item.namespace, text=decode(item.tokens)
        )
        if match is None or match.similarity is None:
            return
        self._audit.lookup_hit(
            item.request_id,
            donor_id=match.donor_id,
            kind="meaning",
            reusable_tokens=match.shared_tokens,
            reason="evidence",
            similarity=match.similarity,
        )
