"""The bytes of donors on each rank, counted by the scheduler: all ranks have the same segments."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semblend.kv.segments import SegmentKey


class DonorBudget:
    """Donors and the bytes they hold on each rank; the least recently used make room."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._donors: OrderedDict[str, tuple[SegmentKey, ...]] = OrderedDict()
        self._users: Counter[bytes] = Counter()
        self._pins: Counter[str] = Counter()
        self._token_bytes = 0
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._donors)

    def __contains__(self, donor_id: str) -> bool:
        return donor_id in self._donors

    def set_token_bytes(self, token_bytes: int) -> None:
        """Bytes of one token's K/V on one rank; known once the pool is."""
        self._token_bytes = token_bytes

    def admit(self, donor_id: str, keys: tuple[SegmentKey, ...]) -> tuple[bool, list[str]]:
        """Make room for a donor: whether it is kept, and who had to go."""
        evicted: list[str] = []
        if not self._token_bytes or not self._could_fit(keys):
            return False, evicted
        for candidate in list(self._donors):
            if self._fits(keys):
                break
            if not self.is_pinned(candidate):
                self.remove(candidate)
                evicted.append(candidate)
        self._donors[donor_id] = keys
        for key in keys:
            if not self._users[key.digest]:
                self.used_bytes += key.length * self._token_bytes
            self._users[key.digest] += 1
        return True, evicted

    def remove(self, donor_id: str) -> None:
        """A donor is let go of; unknown ids are no error."""
        for key in self._donors.pop(donor_id, ()):
            self._users[key.digest] -= 1
            if not self._users[key.digest]:
                del self._users[key.digest]
                self.used_bytes -= key.length * self._token_bytes

    def clear(self) -> None:
        """All donors are let go of."""
        for donor_id in list(self._donors):
            self.remove(donor_id)

    def pin(self, donor_ids: tuple[str, ...]) -> bool:
        """Keep these until :meth:`unpin`; False if one of them is not held."""
        if any(donor_id not in self._donors for donor_id in donor_ids):
            return False
        for donor_id in donor_ids:
            self._pins[donor_id] += 1
            self._donors.move_to_end(donor_id)
        return True

    def unpin(self, donor_ids: tuple[str, ...]) -> None:
        """An offer that relied on these is settled."""
        for donor_id in donor_ids:
            self._pins[donor_id] -= 1
            if self._pins[donor_id] <= 0:
                del self._pins[donor_id]

    def is_pinned(self, donor_id: str) -> bool:
        """Whether an offer relies on it."""
        return self._pins[donor_id] > 0

    def _could_fit(self, keys: tuple[SegmentKey, ...]) -> bool:
        """Whether there is room beside what offers rely on, if everything else went."""
        kept = {key.digest: key.length for key in keys}
        for donor_id in self._pins:
            kept |= {key.digest: key.length for key in self._donors.get(donor_id, ())}
        return sum(kept.values()) * self._token_bytes <= self._capacity

    def _fits(self, keys: tuple[SegmentKey, ...]) -> bool:
        return self.used_bytes + self._new_bytes(keys) <= self._capacity

    def _new_bytes(self, keys: tuple[SegmentKey, ...]) -> int:
        return sum(key.length for key in keys if not self._users[key.digest]) * self._token_bytes
