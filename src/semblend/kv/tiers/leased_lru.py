"""A byte limit with least-recently-used eviction and leases: the accounting of every tier.

Three invariants hold. The bytes held, including entries being filled and removed entries still in
use, never exceed the capacity. A leased entry is never evicted. An entry is visible only when it is
complete.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from semblend.core.errors import CapacityError
from semblend.kv.segments import SegmentKey

Payload = TypeVar("Payload")


@dataclass(slots=True, eq=False)
class Entry(Generic[Payload]):
    """One held entry. Changed only under its table's lock."""

    key: SegmentKey
    nbytes: int
    generation: int
    """Unique per admission, even of the same key."""
    payload: Payload | None = None
    """None while it is being filled."""
    leases: int = 0
    leaving: bool = False
    """Chosen as a victim. Its owner may still be copying it elsewhere."""
    unwanted: bool = False
    """Removed while being filled. It goes as soon as that is done."""


def _keep_nothing(_: Entry[Payload]) -> None:
    """The default for entries that leave."""


class LeasedLru(Generic[Payload]):
    """Entries by key within `capacity_bytes`.

    `discard` is called, under the lock, with every entry that leaves the table. It must free the
    entry's bytes before it returns (a file is unlinked).
    """

    def __init__(
        self,
        capacity_bytes: int,
        *,
        discard: Callable[[Entry[Payload]], None] = _keep_nothing,
        evicts: bool = True,
    ) -> None:
        """Start empty; with `evicts` off an entry goes only when it is removed."""
        if capacity_bytes < 0:
            raise CapacityError(f"capacity_bytes: expected 0 or more, got {capacity_bytes}")
        self.capacity_bytes = capacity_bytes
        self._discard = discard
        self._evicts = evicts
        self._entries: OrderedDict[bytes, Entry[Payload]] = OrderedDict()
        self._used_bytes = 0
        self._generations = 0
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        # One admission at a time makes room, so that two never count on the same victim. From
        # inside it, tiers are only entered downwards, so there is no deadlock.
        self._admission = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """Bytes held, being filled, or still leased after removal."""
        return self._used_bytes

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: SegmentKey) -> bool:
        with self._lock:
            entry = self._entries.get(key.digest)
            return entry is not None and entry.payload is not None

    def keys(self) -> tuple[SegmentKey, ...]:
        """Keys of complete entries, least recently used first."""
        with self._lock:
            return tuple(e.key for e in self._entries.values() if e.payload is not None)

    def leased(self) -> int:
        """Number of leased entries."""
        with self._lock:
            return sum(1 for entry in self._entries.values() if entry.leases)

    def leased_bytes(self) -> int:
        """Bytes that cannot be freed now: leased, being filled, or still in use after removal."""
        with self._lock:
            entries = self._entries.values()
            free = sum(e.nbytes for e in entries if e.payload is not None and not e.leases)
            return self._used_bytes - free

    def lease(self, key: SegmentKey, *, wait_s: float = 0.0) -> Entry[Payload] | None:
        """Mark the entry as most recently used and keep it until :meth:`release`.

        If another thread is filling the entry, wait up to `wait_s` seconds.
        """
        with self._lock:
            if wait_s > 0.0:
                self._filled.wait_for(lambda: not self._is_filling(key), timeout=wait_s)
            entry = self._entries.get(key.digest)
            if entry is None or entry.payload is None:
                return None
            self._entries.move_to_end(key.digest)
            entry.leases += 1
            return entry

    def release(self, entry: Entry[Payload]) -> None:
        with self._lock:
            entry.leases -= 1
            self._free_if_orphaned(entry)

    def admit(
        self,
        key: SegmentKey,
        nbytes: int,
        fill: Callable[[], Payload],
        *,
        leave: Callable[[Entry[Payload]], None] = _keep_nothing,
        left: Callable[[SegmentKey], None] = lambda _: None,
    ) -> bool:
        """Make room for `nbytes`, then fill and publish the entry. False if the key is already
        here.

        `leave` is called with each victim before it goes (to demote it) and `left` afterwards. Both
        run outside the table's lock.

        Raises
        ------
        CapacityError
            If it does not fit and nothing more may be evicted. Whatever `fill`
            raises is passed on, and the room is freed.
        """
        with self._admission:
            entry = self._reserve(key, nbytes, leave, left)
        if entry is None:
            return False
        try:
            payload = fill()
        except BaseException:
            with self._lock:
                del self._entries[key.digest]
                self._used_bytes -= entry.nbytes
                self._filled.notify_all()
            raise
        with self._lock:
            entry.payload = payload
            self._filled.notify_all()
            if entry.unwanted:
                self._take_out(entry)
        return True

    def evict(
        self,
        *,
        leave: Callable[[Entry[Payload]], None] = _keep_nothing,
        left: Callable[[SegmentKey], None] = lambda _: None,
    ) -> bool:
        """Evict the least recently used entry even though there is room. False if none may go."""
        with self._admission:
            with self._lock:
                try:
                    victim = self._choose_victim(0)
                except CapacityError:
                    return False
            self._let_go(victim, leave, left)
        return True

    def remove(self, key: SegmentKey, *, generation: int | None = None) -> bool:
        """Remove an entry from view. Its bytes are freed when its last lease ends.

        With a `generation`, only that admission of the key is removed.
        """
        with self._lock:
            entry = self._entries.get(key.digest)
            if entry is None or (generation is not None and entry.generation != generation):
                return False
            if entry.payload is None:
                entry.unwanted = True
            else:
                self._take_out(entry)
            return True

    def _is_filling(self, key: SegmentKey) -> bool:
        entry = self._entries.get(key.digest)
        return entry is not None and entry.payload is None

    def _reserve(
        self,
        key: SegmentKey,
        nbytes: int,
        leave: Callable[[Entry[Payload]], None],
        left: Callable[[SegmentKey], None],
    ) -> Entry[Payload] | None:
        while True:
            with self._lock:
                if key.digest in self._entries:
                    return None
                if self._used_bytes + nbytes <= self.capacity_bytes:
                    self._generations += 1
                    entry: Entry[Payload] = Entry(key, nbytes, self._generations)
                    self._entries[key.digest] = entry
                    self._used_bytes += nbytes
                    return entry
                victim = self._choose_victim(nbytes)
            self._let_go(victim, leave, left)

    def _let_go(
        self,
        victim: Entry[Payload],
        leave: Callable[[Entry[Payload]], None],
        left: Callable[[SegmentKey], None],
    ) -> None:
        try:
            leave(victim)
        finally:
            with self._lock:
                victim.leaving = False
                gone = not victim.leases and self._entries.get(victim.key.digest) is victim
                if gone:
                    self._take_out(victim)
                else:
                    self._free_if_orphaned(victim)
        if gone:
            left(victim.key)

    def _choose_victim(self, nbytes: int) -> Entry[Payload]:
        if self._evicts and nbytes <= self.capacity_bytes:
            for entry in self._entries.values():
                if entry.payload is not None and not entry.leases:
                    entry.leaving = True
                    return entry
        raise CapacityError(
            f"{nbytes} bytes do not fit: {self._used_bytes} of {self.capacity_bytes} are in use "
            f"and nothing more may be evicted"
        )

    def _take_out(self, entry: Entry[Payload]) -> None:
        self._discard(entry)
        del self._entries[entry.key.digest]
        self._free_if_orphaned(entry)

    def _free_if_orphaned(self, entry: Entry[Payload]) -> None:
        """Free an entry's bytes once it is out of the table and unused."""
        held = self._entries.get(entry.key.digest) is entry
        if not held and entry.payload is not None and not entry.leases and not entry.leaving:
            self._used_bytes -= entry.nbytes
            entry.payload = None
