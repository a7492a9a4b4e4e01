"""The accounting of every tier against a plain list: caps, order of use, leases."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from semblend.core.errors import CapacityError
from semblend.kv.tiers.leased_lru import Entry, LeasedLru
from tests.kv.segments import key_of

CAPACITY = 10
numbers = st.integers(0, 7)


class LeasedLruMachine(RuleBasedStateMachine):
    """Every operation also on an oracle: a list in order of use, and counts of leases."""

    def __init__(self) -> None:
        super().__init__()
        self.discarded: list[int] = []
        self.table: LeasedLru[int] = LeasedLru(CAPACITY, discard=self._note)
        self.order: list[int] = []
        self.sizes: dict[int, int] = {}
        self.leases: list[tuple[int, Entry[int]]] = []
        self.orphans: list[tuple[int, Entry[int]]] = []
        self.orphan_bytes: dict[int, int] = {}

    def _note(self, entry: Entry[int]) -> None:
        assert entry.payload is not None
        self.discarded.append(entry.payload)

    def _leased(self, number: int) -> bool:
        return any(held == number for held, _ in self.leases)

    def _used(self) -> int:
        return sum(self.sizes[n] for n in self.order) + sum(self.orphan_bytes.values())

    @rule(number=numbers, size=st.integers(0, CAPACITY + 1))
    def admit(self, number: int, size: int) -> None:
        expected: list[int] = []
        fits = True
        if number not in self.order:
            room = CAPACITY - self._used()
            candidates = [n for n in self.order if not self._leased(n)]
            while room < size and candidates and size <= CAPACITY:
                victim = candidates.pop(0)
                expected.append(victim)
                room += self.sizes[victim]
            fits = room >= size
        went: list[bytes] = []
        self.discarded.clear()
        try:
            admitted = self.table.admit(
                key_of(number), size, lambda: number, left=lambda key: went.append(key.digest)
            )
        except CapacityError:
            assert not fits
        else:
            assert fits
            assert admitted == (number not in self.order)
            if admitted:
                self.order.append(number)
                self.sizes[number] = size
        assert self.discarded == expected
        assert went == [key_of(n).digest for n in expected]
        self.order = [n for n in self.order if n not in expected]

    @rule(number=numbers)
    def failing_fill(self, number: int) -> None:
        if number in self.order or self._used() == CAPACITY:
            return

        def fail() -> int:
            raise OSError("no")

        with pytest.raises(OSError, match="no"):
            self.table.admit(key_of(number), 1, fail)

    @rule(number=numbers)
    def lease(self, number: int) -> None:
        entry = self.table.lease(key_of(number))
        assert (entry is not None) == (number in self.order)
        if entry is not None:
            assert entry.payload == number
            self.order.remove(number)
            self.order.append(number)
            self.leases.append((number, entry))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.leases) - 1))
        _, entry = self.leases.pop(at)
        self.table.release(entry)

    @precondition(lambda self: self.orphans)
    @rule()
    def release_orphan(self) -> None:
        _, entry = self.orphans.pop()
        self.table.release(entry)
        if not any(other is entry for _, other in self.orphans):
            del self.orphan_bytes[id(entry)]

    @rule(number=numbers)
    def remove(self, number: int) -> None:
        assert self.table.remove(key_of(number)) == (number in self.order)
        if number not in self.order:
            return
        self.order.remove(number)
        still = [lease for lease in self.leases if lease[0] == number]
        self.leases = [lease for lease in self.leases if lease[0] != number]
        self.orphans += still
        if still:
            self.orphan_bytes[id(still[0][1])] = self.sizes[number]

    @invariant()
    def holds_what_the_oracle_holds(self) -> None:
        assert self.table.keys() == tuple(key_of(n) for n in self.order)
        assert self.table.used_bytes == self._used() <= CAPACITY
        assert self.table.leased() == len({n for n, _ in self.leases})
        assert all(entry.payload == number for number, entry in self.leases + self.orphans)


TestLeasedLru = LeasedLruMachine.TestCase
TestLeasedLru.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_an_entry_leased_while_it_leaves_stays() -> None:
    table: LeasedLru[int] = LeasedLru(2)
    table.admit(key_of(0), 1, lambda: 0)
    table.admit(key_of(1), 1, lambda: 1)
    leased = []

    def leave(entry: Entry[int]) -> None:
        if entry.payload == 0:
            leased.append(table.lease(entry.key))

    table.admit(key_of(2), 1, lambda: 2, leave=leave)
    assert key_of(0) in table
    assert key_of(1) not in table
    assert leased[0].payload == 0


def test_an_entry_removed_while_it_is_filled_is_never_seen() -> None:
    discarded = []
    table: LeasedLru[int] = LeasedLru(2, discard=lambda entry: discarded.append(entry.payload))

    def fill() -> int:
        assert table.lease(key_of(0)) is None
        assert table.remove(key_of(0))
        return 7

    assert table.admit(key_of(0), 2, fill)
    assert discarded == [7]
    assert key_of(0) not in table
    assert table.used_bytes == 0


def test_a_removal_of_one_generation_leaves_the_next_alone() -> None:
    table: LeasedLru[int] = LeasedLru(4)
    table.admit(key_of(0), 1, lambda: 0)
    first = table.lease(key_of(0))
    assert first is not None
    table.remove(key_of(0))
    table.admit(key_of(0), 1, lambda: 1)
    assert not table.remove(key_of(0), generation=first.generation)
    assert key_of(0) in table
    assert table.used_bytes == 2
    table.release(first)
    assert table.used_bytes == 1


def test_a_negative_capacity_is_refused() -> None:
    with pytest.raises(CapacityError, match="capacity_bytes"):
        LeasedLru(-1)
