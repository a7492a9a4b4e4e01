"""Registering donors beside the scheduler: fingerprinting long prompts takes milliseconds."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from semblend.core.tokens import TokenIds
from semblend.integration.sglang.log_lines import logger
from semblend.integration.sglang.provider import DonorRecord, SemBlendProvider

_WAITING = 256


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Offer:
    """A prompt whose exact K/V the tree holds."""

    tokens: TokenIds
    request_id: str
    extra_key: str | None
    cache_salt: str | None


class DonorQueue:
    """A bounded queue and its thread. What does not fit is not kept as a donor."""

    def __init__(
        self, provider: SemBlendProvider, registered: Callable[[Offer, DonorRecord], None]
    ) -> None:
        """`registered` is called on the thread, once a donor may be found."""
        self._provider = provider
        self._registered = registered
        self._offers: queue.Queue[Offer] = queue.Queue(maxsize=_WAITING)
        threading.Thread(target=self._work, name="semblend-donors", daemon=True).start()

    def offer(self, offer: Offer) -> bool:
        """Put a prompt in line; False if the line is full. Never waits."""
        try:
            self._offers.put_nowait(offer)
        except queue.Full:
            return False
        return True

    def clear(self) -> None:
        """Forget whoever is in line; returns when the thread holds nothing either."""
        try:
            while True:
                self._offers.get_nowait()
                self._offers.task_done()
        except queue.Empty:
            self.wait()

    def wait(self) -> None:
        """Until everybody in line was served."""
        self._offers.join()

    def _work(self) -> None:
        while True:
            offer = self._offers.get()
            try:
                record = self._provider.register_donor(
                    offer.tokens,
                    request_id=offer.request_id,
                    extra_key=offer.extra_key,
                    cache_salt=offer.cache_salt,
                )
                if record is not None:
                    self._registered(offer, record)
            except Exception:
                logger.warning("SemBlend did not keep %s", offer.request_id, exc_info=True)
            finally:
                self._offers.task_done()
