"""What a directory knows about each worker rank: how far it has read, and whether it lives."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from semblend.core.errors import SerialisationError

RankName: TypeAlias = tuple[str, int]
"""(worker_id, dp_rank)."""


class Liveness(StrEnum):
    """Whether a rank's donors are visible."""

    ALIVE = "alive"
    SUSPENDED = "suspended"
    """Silent for too long: its donors are hidden until it sends a heartbeat again."""


@dataclass(slots=True)
class Rank:
    """One rank, as far as its events have been read."""

    name: RankName
    number: int
    generation: int = -1
    last_event_id: int = -1
    liveness: Liveness = Liveness.SUSPENDED
    """Hidden until its first heartbeat, because a log also lists dead ranks."""
    heard_at: float = 0.0
    in_doubt: bool = False
    """Something was missed; until the rank resends everything, it holds more than is known."""
    namespace: Mapping[str, Any] = field(default_factory=dict)
    awaited_id: int = -1
    """An id that the rank reported before we had read that far."""
    awaited_since: float = 0.0

    def waits_too_long(self, announced_id: int, now: float, patience_s: float) -> bool:
        """Whether an announced event is overdue.

        The log may have lost it (limits, a restored backup), and nobody will send it again.
        """
        if announced_id <= self.last_event_id:
            self.awaited_id = -1
            return False
        if self.last_event_id >= self.awaited_id:
            self.awaited_id, self.awaited_since = announced_id, now
        return now - self.awaited_since > patience_s

    def to_dict(self) -> dict[str, Any]:
        """For snapshots: nothing that depends on this process's clock."""
        return {
            "worker_id": self.name[0],
            "dp_rank": self.name[1],
            "number": self.number,
            "generation": self.generation,
            "last_event_id": self.last_event_id,
            "in_doubt": self.in_doubt,
            "namespace": dict(self.namespace),
        }


class NamespaceKinds:
    """The distinct namespaces that ranks published; few, whatever the number of ranks."""

    LIMIT = 64

    def __init__(self) -> None:
        self._kinds: dict[str, dict[str, Any]] = {}

    def add(self, namespace: Mapping[str, Any]) -> None:
        """Record a rank's namespace; above the limit, drop the one not seen for longest."""
        if not namespace:
            return
        kind = json.dumps(namespace, sort_keys=True)
        self._kinds.pop(kind, None)
        self._kinds[kind] = dict(namespace)
        if len(self._kinds) > self.LIMIT:
            del self._kinds[next(iter(self._kinds))]

    def listed(self) -> list[dict[str, Any]]:
        return list(self._kinds.values())


class RankBook:
    """Ranks by name; a rank's number never changes."""

    def __init__(self) -> None:
        self._ranks: dict[RankName, Rank] = {}
        self._by_number: list[Rank] = []

    def __iter__(self) -> Iterator[Rank]:
        return iter(self._by_number)

    def __len__(self) -> int:
        return len(self._by_number)

    def get(self, name: RankName) -> Rank | None:
        """The rank, if known."""
        return self._ranks.get(name)

    def by_number(self, number: int) -> Rank:
        return self._by_number[number]

    def of(self, name: RankName, now: float) -> Rank:
        """The rank, created if necessary."""
        rank = self._ranks.get(name)
        if rank is None:
            rank = Rank(name=name, number=len(self._by_number), heard_at=now)
            self._ranks[name] = rank
            self._by_number.append(rank)
        return rank

    def restore(self, records: list[Any], now: float) -> None:
        """Load ranks from a snapshot.

        Raises
        ------
        SerialisationError
            If a record is not one of :meth:`Rank.to_dict`.
        """
        for number, record in enumerate(records):
            try:
                rank = self.of((str(record["worker_id"]), int(record["dp_rank"])), now)
                if rank.number != number or record["number"] != number:
                    raise SerialisationError(f"snapshot ranks[{number}]: out of order")
                rank.generation = int(record["generation"])
                rank.last_event_id = int(record["last_event_id"])
                rank.in_doubt = bool(record["in_doubt"])
                rank.namespace = dict(record["namespace"])
            except (KeyError, TypeError, ValueError) as error:
                raise SerialisationError(f"snapshot ranks[{number}]: {error}") from error
