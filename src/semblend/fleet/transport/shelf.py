"""What one worker keeps in the shared store: within a byte quota, for a time, with leases.

A donor is withdrawn in two steps. Its manifest is removed at once, so that no new reader
finds it. Its segments follow one lease later, so that a reader who has just read the manifest
can still read them. Segments shared by several donors are stored once and removed with the
last one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from semblend.core.errors import CapacityError
from semblend.core.tokens import TokenArray
from semblend.fleet.transport.payload import encode_manifest, encode_segment
from semblend.fleet.transport.store import ObjectStore
from semblend.kv.segments import Segment

logger = logging.getLogger("semblend.fleet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """One of our donors in the shared store."""

    manifest: str
    segments: tuple[str, ...]
    expires_at: float


class SharedShelf:
    """Enforces the quota: bytes put and not yet removed never exceed it. Thread-safe.

    Parameters
    ----------
    lease_s
        How long segments outlive their manifest.
    gone
        Called with the id of every withdrawn donor, outside the lock.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        max_bytes: int,
        ttl_s: float,
        lease_s: float = 10.0,
        gone: Callable[[str], object] = lambda donor_id: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._lease_s = lease_s
        self._gone = gone
        self._clock = clock
        self._donors: OrderedDict[str, Shared] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._users: dict[str, int] = {}
        self._leaving: deque[tuple[float, str]] = deque()
        self._lock = threading.RLock()
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._donors)

    def get(self, donor_id: str) -> Shared | None:
        with self._lock:
            return self._donors.get(donor_id)

    def put(
        self,
        donor_id: str,
        *,
        manifest: str,
        tokens: TokenArray,
        segments: Iterable[tuple[str, Segment]],
    ) -> None:
        """Share a donor: segments first, manifest last, so that every visible donor is complete.

        Raises
        ------
        CapacityError
            If it does not fit even with everything else removed.
        StorageError
            If the store fails. Nothing of the donor stays visible.
        """
        held: list[str] = []
        try:
            for name, segment in segments:
                self._put_segment(name, segment)
                held.append(name)
            self.store.put(manifest, encode_manifest(tokens))
        except BaseException:
            with self._lock:
                self._release(held, at_once=True)
            raise
        with self._lock:
            self._donors[donor_id] = Shared(
                manifest=manifest,
                segments=tuple(held),
                expires_at=self._clock() + self._ttl_s,
            )

    def withdraw(self, donor_id: str) -> bool:
        """Stop sharing a donor; False if it was not shared."""
        with self._lock:
            shared = self._donors.pop(donor_id, None)
            if shared is None:
                return False
            self._remove(shared.manifest)
            self._release(shared.segments)
        self._gone(donor_id)
        return True

    def expire(self) -> None:
        """Withdraw what is too old, and remove segments whose lease has ended."""
        now = self._clock()
        with self._lock:
            old = [d for d, shared in self._donors.items() if shared.expires_at <= now]
        for donor_id in old:
            self.withdraw(donor_id)
        with self._lock:
            while self._leaving and self._leaving[0][0] <= now:
                self._drop(self._leaving.popleft()[1])

    def close(self) -> None:
        """Withdraw everything, regardless of leases, because the worker is leaving."""
        for donor_id in list(self._donors):
            self.withdraw(donor_id)
        with self._lock:
            while self._leaving:
                self._drop(self._leaving.popleft()[1])
        self.store.close()

    def _put_segment(self, name: str, segment: Segment) -> None:
        parts = encode_segment(segment)
        size = sum(len(memoryview(part).cast("B")) for part in parts)
        if size > self.max_bytes:
            raise CapacityError(f"a segment of {size} bytes exceeds the quota of {self.max_bytes}")
        with self._lock:
            self._users[name] = self._users.get(name, 0) + 1
            if name in self._sizes:
                return
        try:
            self._make_room(size)
            with self._lock:
                self._sizes[name] = size
                self.used_bytes += size
            self.store.put(name, parts)
        except BaseException:
            with self._lock:
                self._release([name], at_once=True)
            raise

    def _make_room(self, size: int) -> None:
        """Withdraw the oldest donors until `size` fits, ending their leases early."""
        while True:
            with self._lock:
                while self._leaving and self.used_bytes + size > self.max_bytes:
                    self._drop(self._leaving.popleft()[1])
                if self.used_bytes + size <= self.max_bytes:
                    return
                oldest = next(iter(self._donors), None)
            if oldest is None:
                raise CapacityError(f"no room for {size} bytes in the shared store's quota")
            self.withdraw(oldest)

    def _release(self, names: Iterable[str], *, at_once: bool = False) -> None:
        leave_at = self._clock() + (0.0 if at_once else self._lease_s)
        for name in names:
            self._users[name] -= 1
            if not self._users[name]:
                if at_once:
                    self._drop(name)
                else:
                    self._leaving.append((leave_at, name))

    def _drop(self, name: str) -> None:
        if self._users.get(name, 0):
            return  # Shared again meanwhile.
        self._users.pop(name, None)
        self.used_bytes -= self._sizes.pop(name, 0)
        self._remove(name)

    def _remove(self, name: str) -> None:
        try:
            self.store.remove(name)
        except Exception as error:
            logger.warning("a shared object was not removed: %s", error)
