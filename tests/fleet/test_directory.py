"""The directory never speaks of a donor that its rank has not, and converges to the truth."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from semblend.core.errors import SerialisationError, StorageError
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.events.event_values import (
    DonorEvicted,
    DonorRelocated,
    DonorsPurged,
    GenerationReset,
    Heartbeat,
    Location,
)
from semblend.fleet.keys import donor_key
from semblend.fleet.sketch import sketch
from tests.fleet.support import KEYS, OTHER_KEYS, event, prompt, registered

DOCUMENT = prompt(100, 2048)


def directory(**options):
    options.setdefault("lease_s", None)
    return Directory(SketchIndex(max_donors=256, max_postings=64_000), **options)


def reset(generation=1, event_id=1, worker="w"):
    return event(event_id, GenerationReset(generation=generation), worker)


def known(held, name=("w", 0)):
    return held.donor_keys().get(name, frozenset())


def key(donor_id, worker="w"):
    return donor_key(worker, 0, donor_id)


def test_a_moved_document_is_found_with_its_owner_and_coverage():
    held = directory()
    donor = np.concatenate((prompt(1, 300), DOCUMENT))
    held.apply([reset(), event(2, registered("d", donor))])
    target = np.concatenate((prompt(2, 1000), DOCUMENT, prompt(3, 1048)))
    found = held.lookup(sketch(target, KEYS, sampling=4), KEYS.namespace_id)
    (holding,) = found.holdings
    assert (holding.worker_id, holding.donor_key) == ("w", key("d"))
    assert holding.covered_tokens == pytest.approx(2048, abs=300)
    assert holding.prefix_tokens == 0


def test_a_shared_prefix_is_known_to_the_mark():
    held = directory()
    held.apply([reset(), event(2, registered("d", DOCUMENT))])
    target = np.concatenate((DOCUMENT[:1100], prompt(4, 900)))
    (holding,) = held.lookup(sketch(target, KEYS, sampling=4), KEYS.namespace_id).holdings
    assert holding.prefix_tokens == 1024


def test_coverage_of_a_rank_adds_up_over_its_donors_and_counts_nothing_twice():
    def behind(seed, tokens):
        return np.concatenate((prompt(seed, 40), tokens))

    held = directory()
    halves = DOCUMENT[:1024], DOCUMENT[1024:]
    held.apply(
        [
            reset(),
            event(2, registered("one", behind(1, halves[0]), sampling=1)),
            event(3, registered("two", behind(2, halves[1]), sampling=1)),
            event(4, registered("again", behind(3, halves[1]), sampling=1)),
        ]
    )
    target = np.concatenate((prompt(9, 64), DOCUMENT))
    (holding,) = held.lookup(sketch(target, KEYS, sampling=1), KEYS.namespace_id).holdings
    assert holding.covered_tokens == pytest.approx(2048, abs=120)
    assert holding.donor_covered_tokens == pytest.approx(1024, abs=120)


def test_other_namespaces_are_not_even_scored():
    held = directory()
    held.apply([reset(), event(2, registered("d", DOCUMENT, keys=OTHER_KEYS))])
    assert not held.lookup(sketch(DOCUMENT, KEYS), KEYS.namespace_id).holdings
    # Even a sketch made with the other's keys finds nothing under this one's name.
    held.apply([event(3, registered("mine", prompt(5, 600)))])
    assert not held.lookup(sketch(DOCUMENT, OTHER_KEYS), KEYS.namespace_id).holdings


def test_eviction_purge_and_reset_take_donors_away():
    held = directory()
    held.apply([reset(), *(event(2 + i, registered(f"d{i}", prompt(i, 600))) for i in range(3))])
    held.apply([event(5, DonorEvicted(donor_id="d1", generation=1))])
    assert known(held) == {key("d0"), key("d2")}
    other = registered("o", prompt(7, 600), keys=OTHER_KEYS)
    held.apply([event(6, other), event(7, DonorsPurged(generation=1, namespace_id="nobody's"))])
    assert len(known(held)) == 3
    held.apply([event(8, DonorsPurged(generation=1, namespace_id=KEYS.namespace_id))])
    assert known(held) == {key("o")}
    held.apply([reset(2, 9)])
    assert not known(held)


def test_a_registration_and_its_eviction_in_one_batch_leave_nothing():
    held = directory()
    held.apply(
        [
            reset(),
            event(2, registered("d", DOCUMENT)),
            event(3, DonorEvicted(donor_id="d", generation=1)),
        ]
    )
    assert not known(held)
    held.apply(
        [
            event(4, registered("d", DOCUMENT)),
            event(5, DonorEvicted(donor_id="d", generation=1)),
            event(6, registered("d", DOCUMENT)),
        ]
    )
    assert known(held) == {key("d")}


def test_a_gap_drops_what_was_known_keeps_what_follows_and_asks_for_a_new_start():
    held, asked = directory(), []
    held.on_doubt(asked.append)
    held.apply([reset(), event(2, registered("before", prompt(1, 600)))])
    held.apply([event(4, registered("after", prompt(2, 600)))])
    assert known(held) == {key("after")}
    assert asked == [("w", 0)]
    assert held.stats().gaps == 1
    held.apply([reset(2, 5), event(6, registered("before", prompt(1, 600), generation=2))])
    assert known(held) == {key("before")}
    assert not held.stats().ranks_in_doubt


def test_events_twice_or_of_a_former_life_change_nothing():
    held = directory()
    log = [reset(), event(2, registered("d", DOCUMENT))]
    held.apply(log)
    held.apply([*log, event(1, DonorEvicted(donor_id="d", generation=1))])
    assert known(held) == {key("d")}
    held.apply([reset(5, 3), event(4, registered("new", prompt(1, 600), generation=5))])
    held.apply([event(5, registered("ghost", prompt(2, 600), generation=1))])
    assert known(held) == {key("new")}


def test_a_newer_generation_without_its_reset_is_a_gap():
    held = directory()
    held.apply([reset(), event(2, registered("old", DOCUMENT))])
    held.apply([event(3, registered("new", prompt(1, 600), generation=2))])
    assert known(held) == {key("new")}
    assert held.stats().ranks_in_doubt == 1


def test_a_silent_worker_is_hidden_and_comes_back_when_it_is_heard_and_we_are_level():
    now = [0.0]
    held = directory(lease_s=5.0, clock=lambda: now[0])
    held.apply([reset(), event(2, registered("d", DOCUMENT))])
    assert not known(held), "a log tells of the dead, too"

    def beat(last=2):
        held.hear(Heartbeat(worker_id="w", dp_rank=0, generation=1, last_event_id=last))

    beat()
    assert known(held) == {key("d")}
    now[0] = 6.0
    assert held.expire() == [("w", 0)]
    assert not held.lookup(sketch(DOCUMENT, KEYS), KEYS.namespace_id).holdings
    beat(last=3)
    assert not known(held), "an event is on its way: it may be an eviction"
    held.apply([event(3, DonorEvicted(donor_id="d", generation=1))])
    beat(last=3)
    assert known(held) == frozenset()
    assert held.donor_keys() == {("w", 0): frozenset()}


def test_an_event_that_was_announced_and_never_comes_is_a_gap():
    now = [0.0]
    held = directory(lease_s=5.0, clock=lambda: now[0])
    held.apply([reset(), event(2, registered("d", DOCUMENT))])
    for moment in (0.0, 3.0, 6.0):
        now[0] = moment
        held.hear(Heartbeat(worker_id="w", dp_rank=0, generation=1, last_event_id=9))
    assert held.stats().gaps == 1
    assert held.stats().donors == 0


def test_a_beat_of_another_life_drops_everything():
    held = directory(lease_s=5.0, clock=lambda: 0.0)
    held.apply([reset(), event(2, registered("d", DOCUMENT))])
    held.hear(Heartbeat(worker_id="w", dp_rank=0, generation=7, last_event_id=20))
    assert held.stats().donors == 0
    assert held.stats().ranks_in_doubt == 1


def test_a_lost_worker_loses_all_its_ranks_and_nobody_elses():
    held = directory()
    for worker in ("w", "v"):
        for rank in range(2):
            start = event(1, GenerationReset(generation=1), worker, rank)
            held.apply([start, event(2, registered("d", DOCUMENT), worker, rank)])
    for rank in range(2):
        held.doubt(("w", rank))
    assert held.stats().ranks_in_doubt == 2
    assert {name for name, donors in held.donor_keys().items() if donors} == {("v", 0), ("v", 1)}


def test_a_donor_in_a_shared_store_is_offered_apart_from_what_workers_hold():
    held = directory()
    both = Location(worker_id="w", backend="folder", locator="m")
    held.apply([reset(), event(2, registered("d", DOCUMENT, location=both))])
    found = held.lookup(sketch(DOCUMENT, KEYS, sampling=4), KEYS.namespace_id)
    assert found.shared is not None
    assert found.shared.donor_key == key("d") == found.holdings[0].donor_key
    only = Location(kind="shared", backend="folder", locator="m", tier="store")
    held.apply([event(3, DonorRelocated(donor_id="d", generation=1, new_location=only))])
    found = held.lookup(sketch(DOCUMENT, KEYS, sampling=4), KEYS.namespace_id)
    assert not found.holdings
    assert found.shared is not None
    assert found.shared.token_count == 2048


def test_a_full_directory_refuses_newcomers_and_takes_them_once_others_left():
    held = Directory(SketchIndex(max_donors=8, max_postings=4000), lease_s=None)
    held.apply([reset(), *(event(2 + i, registered(f"d{i}", prompt(i, 400))) for i in range(10))])
    assert len(known(held)) == 8
    assert held.stats().refused_donors == 2
    gone = [event(12 + i, DonorEvicted(donor_id=f"d{i}", generation=1)) for i in range(4)]
    held.apply(gone)
    held.apply([event(16 + i, registered(f"n{i}", prompt(50 + i, 400))) for i in range(4)])
    assert len(known(held)) == 8
    found = held.lookup(sketch(prompt(52, 400), KEYS, sampling=4), KEYS.namespace_id)
    assert found.holdings[0].donor_key == key("n2")


def test_a_hot_document_keeps_several_owners_and_the_newest_donor_of_each():
    held = directory()
    for worker in range(20):
        name = f"w{worker:02d}"
        held.apply([event(1, GenerationReset(generation=1), name)])
        held.apply(
            event(2 + i, registered(f"d{i}", DOCUMENT[:600], sampling=1), name) for i in range(4)
        )
    found = held.lookup(sketch(DOCUMENT[:600], KEYS, sampling=1), KEYS.namespace_id)
    assert len(found.holdings) >= 8
    assert all(h.donor_key == key("d3", h.worker_id) for h in found.holdings)


def test_a_snapshot_restores_everything_and_hides_it_until_heard(tmp_path):
    held = directory()
    held.apply([reset(), *(event(2 + i, registered(f"d{i}", prompt(i, 900))) for i in range(20))])
    held.apply([event(22, DonorEvicted(donor_id="d3", generation=1))])
    size = held.save(tmp_path / "snapshot", position=77)
    assert size == (tmp_path / "snapshot").stat().st_size
    back = directory(lease_s=5.0, clock=lambda: 0.0)
    assert back.load(tmp_path / "snapshot") == 77
    assert not known(back)
    back.hear(Heartbeat(worker_id="w", dp_rank=0, generation=1, last_event_id=22))
    assert known(back) == known(held)
    target = sketch(prompt(5, 900), KEYS, sampling=4)
    assert back.lookup(target, KEYS.namespace_id) == held.lookup(target, KEYS.namespace_id)
    back.apply([event(23, DonorEvicted(donor_id="d5", generation=1))])
    assert known(back) == known(held) - {key("d5")}


@pytest.mark.parametrize("where", [0, 9, 30, 2000, -1])
def test_a_snapshot_with_one_bit_wrong_is_refused_whole(tmp_path, where):
    held = directory()
    held.apply([reset(), event(2, registered("d", DOCUMENT))])
    path = tmp_path / "snapshot"
    held.save(path)
    data = bytearray(path.read_bytes())
    data[where] ^= 4
    path.write_bytes(data)
    fresh = directory()
    with pytest.raises((SerialisationError, StorageError)):
        fresh.load(path)
    assert fresh.stats().donors == 0


def test_a_cut_or_foreign_snapshot_is_refused(tmp_path):
    held = directory()
    held.apply([reset(), event(2, registered("d", DOCUMENT))])
    path = tmp_path / "snapshot"
    held.save(path)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole + b"x", b"", b"no snapshot at all, this"):
        path.write_bytes(damaged)
        with pytest.raises(SerialisationError):
            directory().load(path)
    path.write_bytes(whole)
    with pytest.raises(SerialisationError, match="another size"):
        Directory(SketchIndex(max_donors=9, max_postings=900)).load(path)
    with pytest.raises(StorageError):
        directory().load(tmp_path / "nothing")


class AgainstAnOracle(RuleBasedStateMachine):
    """Any mixture of events, losses and duplicates: live donors are what a dict says they are."""

    donors = Bundle("donors")

    def __init__(self):
        super().__init__()
        self.index = SketchIndex(max_donors=24, max_postings=2000)
        self.held = Directory(self.index, lease_s=None)
        self.truth = {"a": {}, "b": {}}
        self.ids = {"a": 1, "b": 1}
        self.generation = {"a": 1, "b": 1}
        self.log = []
        for worker in self.truth:
            self.say(worker, GenerationReset(generation=1))

    def say(self, worker, data):
        made = event(self.ids[worker], data, worker)
        self.ids[worker] += 1
        self.log.append(made)
        self.held.apply([made])

    @rule(worker=st.sampled_from("ab"), number=st.integers(0, 9))
    def register(self, worker, number):
        tokens = prompt(number, 200)
        self.truth[worker][f"d{number}"] = tokens
        generation = self.generation[worker]
        self.say(worker, registered(f"d{number}", tokens, sampling=1, generation=generation))

    @rule(worker=st.sampled_from("ab"), number=st.integers(0, 9))
    def evict(self, worker, number):
        self.truth[worker].pop(f"d{number}", None)
        self.say(worker, DonorEvicted(donor_id=f"d{number}", generation=self.generation[worker]))

    @rule(worker=st.sampled_from("ab"))
    def purge(self, worker):
        self.truth[worker].clear()
        self.say(worker, DonorsPurged(generation=self.generation[worker]))

    @rule(worker=st.sampled_from("ab"))
    def restart(self, worker):
        self.truth[worker].clear()
        self.generation[worker] += 1
        self.ids[worker] += 3  # ids of a new life need not follow
        self.say(worker, GenerationReset(generation=self.generation[worker]))

    @rule(worker=st.sampled_from("ab"))
    def skip(self, worker):
        """An event is lost; nothing is certain until the rank has told everything anew."""
        self.ids[worker] += 1
        self.say(worker, DonorEvicted(donor_id="x", generation=self.generation[worker]))
        assert not self.held.donor_keys()[(worker, 0)]
        held = dict(self.truth[worker])
        self.restart(worker)
        for donor_id, tokens in held.items():
            self.truth[worker][donor_id] = tokens
            generation = self.generation[worker]
            self.say(worker, registered(donor_id, tokens, sampling=1, generation=generation))

    @rule()
    def repeat(self):
        self.held.apply(self.log[-5:])

    @invariant()
    def knows_exactly_what_is_held(self):
        for worker, donors in self.truth.items():
            expected = {donor_key(worker, 0, donor_id) for donor_id in donors}
            assert self.held.donor_keys()[(worker, 0)] == expected

    @invariant()
    def finds_only_the_living(self):
        for number in (0, 5):
            tokens = prompt(number, 200)
            found = self.held.lookup(sketch(tokens, KEYS, sampling=1), KEYS.namespace_id)
            owners = {w for w, donors in self.truth.items() if f"d{number}" in donors}
            assert {h.worker_id for h in found.holdings} == owners


TestAgainstAnOracle = AgainstAnOracle.TestCase
TestAgainstAnOracle.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
