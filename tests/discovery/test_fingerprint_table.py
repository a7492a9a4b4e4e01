"""The table finds every place it was given until that place is removed."""

import resource

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from semblend.discovery.fingerprint_table import MAX_PLACES, FingerprintTable


def mixed(number):
    """Well spread hashes, as fingerprints are: a tag that collides is for tokens to refute."""
    number = (number + 0x9E3779B97F4A7C15) % 2**64
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    number = (number ^ number >> 27) * 0x94D049BB133111EB % 2**64
    return number ^ number >> 31


hashes_ = st.lists(st.integers(0, 10**6).map(mixed), min_size=1, max_size=40, unique=True)


class TableMachine(RuleBasedStateMachine):
    """Law: find(h) = the set of places added under h and not removed, while h has at most 8."""

    @initialize(capacity=st.sampled_from([400, 5_000]))
    def start(self, capacity):
        self.table = FingerprintTable(capacity)
        self.model: dict[int, set[int]] = {}
        self.next_place = 0

    @rule(values=hashes_)
    def add(self, values):
        if sum(map(len, self.model.values())) + len(values) > 250:
            return
        places = np.arange(self.next_place, self.next_place + len(values))
        self.next_place += len(values)
        self.table.add(np.array(values, dtype=np.uint64), places)
        for value, place in zip(values, places.tolist(), strict=True):
            held = self.model.setdefault(value, set())
            if len(held) < MAX_PLACES:
                held.add(place)

    @rule(copies=st.integers(1, 20), value=st.integers(0, 5).map(mixed))
    def add_the_same_fingerprint_often(self, copies, value):
        places = np.arange(self.next_place, self.next_place + copies)
        self.next_place += copies
        self.table.add(np.full(copies, value, dtype=np.uint64), places)
        held = self.model.setdefault(value, set())
        held.update(places.tolist()[: max(0, MAX_PLACES - len(held))])

    @rule(data=st.data())
    def remove_some(self, data):
        pairs = [(value, place) for value, places in self.model.items() for place in places]
        if not pairs:
            return
        chosen = data.draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=20, unique=True))
        self.table.remove(
            np.array([value for value, _ in chosen], dtype=np.uint64),
            np.array([place for _, place in chosen]),
        )
        for value, place in chosen:
            self.model[value].remove(place)

    @rule(values=hashes_)
    def unknown_hashes_are_not_found(self, values):
        unknown = [value for value in values if value not in self.model]
        index, _ = self.table.find(np.array(unknown, dtype=np.uint64))
        assert index.size == 0

    @invariant()
    def finds_what_the_model_holds(self):
        if not getattr(self, "model", None):
            return
        known = list(self.model)
        index, places = self.table.find(np.array(known, dtype=np.uint64))
        found: dict[int, list[int]] = {value: [] for value in known}
        for at, place in zip(index.tolist(), places.tolist(), strict=True):
            found[known[at]].append(place)
        assert {value: sorted(held) for value, held in found.items()} == {
            value: sorted(held) for value, held in self.model.items()
        }
        assert self.table.stored == sum(map(len, self.model.values()))


TestTable = TableMachine.TestCase


def test_a_full_table_drops_and_says_so_instead_of_failing():
    table = FingerprintTable(capacity=10)
    values = np.random.default_rng(0).integers(0, 2**64, 1_000, dtype=np.uint64)
    table.add(values, np.arange(1_000))
    assert table.stored + table.dropped == 1_000
    assert table.dropped > 0


def test_at_its_nominal_load_nothing_is_dropped():
    table = FingerprintTable(capacity=200_000)
    values = np.random.default_rng(0).integers(0, 2**64, 200_000, dtype=np.uint64)
    for part in range(0, 200_000, 1_000):
        table.add(values[part : part + 1_000], np.arange(part, part + 1_000))
    assert table.dropped == 0
    index, places = table.find(values)
    assert sorted(places.tolist()) == list(range(200_000))
    assert (index[np.argsort(places)] == np.arange(200_000)).all()


def test_a_table_touched_beforehand_is_not_touched_again_and_keeps_what_it_holds():
    def faults_of(table, hashes):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        table.add(hashes, np.arange(hashes.size))
        return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

    hashes = np.array([mixed(number) for number in range(4000)], dtype=np.uint64)
    table = FingerprintTable(400_000)
    table.add(hashes[:2000], np.arange(2000))
    while table.touch():
        pass
    assert faults_of(table, hashes[2000:]) < 200
    rows, places = table.find(hashes[:2000])
    assert dict(zip(rows.tolist(), places.tolist(), strict=True)) == {n: n for n in range(2000)}
    assert not table.touch()
