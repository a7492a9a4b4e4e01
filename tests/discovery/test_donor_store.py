"""The store finds exactly what live donors hold, whatever came and went before."""

import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from semblend.core.errors import CapacityError, DonorError
from semblend.discovery.donor_store import DonorStore
from tests.oracles.matching import covered_positions

RNG = np.random.default_rng(42)
FRAGMENTS = [RNG.integers(0, 200, size, dtype=np.int32) for size in (20, 33, 40, 90, 150, 260, 400)]
NAMESPACES = [b"a" * 16, b"b" * 16]

fragments = st.lists(
    st.tuples(st.integers(0, len(FRAGMENTS) - 1), st.integers(0, 60), st.integers(0, 60)),
    min_size=1,
    max_size=4,
)


def compose(parts):
    """Slices of shared fragments, so that donors and targets have much in common."""
    pieces = []
    for index, head, tail in parts:
        fragment = FRAGMENTS[index]
        pieces.append(fragment[head : max(head + 1, len(fragment) - tail)])
    return np.concatenate(pieces)


def positions_of(lookup):
    return {at for run in lookup.runs for at in range(run.target_start, run.target_end)}


def check_identical(lookup, target, tokens_by_id):
    for run in lookup.runs:
        donor = tokens_by_id[run.donor_id]
        there = donor[run.donor_start : run.donor_start + run.length]
        assert (there == target[run.target_start : run.target_end]).all()


class StoreMachine(RuleBasedStateMachine):
    """Law: lookup covers what brute force over the live donors of the namespace covers."""

    @initialize(small=st.booleans())
    def start(self, small):
        self.store = DonorStore(2**16 if small else 2**22)
        self.tokens: dict[bytes, dict[str, np.ndarray]] = {name: {} for name in NAMESPACES}
        self.count = 0
        self.store.add_eviction_listener(self.gone)

    def gone(self, donor_id):
        for held in self.tokens.values():
            held.pop(donor_id, None)

    @rule(parts=fragments, namespace=st.sampled_from(NAMESPACES))
    def register(self, parts, namespace):
        text = compose(parts)
        donor_id = f"donor-{self.count}"
        self.count += 1
        if text.size < 32:
            with pytest.raises(DonorError):
                self.store.register(donor_id, text, namespace)
            return
        self.store.register(donor_id, text, namespace)
        self.tokens[namespace][donor_id] = text

    @rule(data=st.data())
    def evict(self, data):
        held = sorted(donor_id for names in self.tokens.values() for donor_id in names)
        if held:
            donor_id = data.draw(st.sampled_from(held))
            assert self.store.evict(donor_id)
            assert not self.store.evict(donor_id)
            self.gone(donor_id)

    @rule(parts=fragments, namespace=st.sampled_from(NAMESPACES))
    def look_up(self, parts, namespace):
        target = compose(parts)
        found = self.store.lookup(target, namespace)
        check_identical(found, target, self.tokens[namespace])
        expected = covered_positions(target.tolist(), self.tokens[namespace].values())
        assert positions_of(found) == expected

    @invariant()
    def every_donor_reads_back_and_the_cap_holds(self):
        if not hasattr(self, "store"):
            return
        for held in self.tokens.values():
            for donor_id, text in held.items():
                assert (self.store.donor_tokens(donor_id) == text).all()
        assert len(self.store) == sum(map(len, self.tokens.values()))
        assert self.store.used_bytes <= self.store.max_bytes

    def teardown(self):
        if hasattr(self, "store"):
            self.store.clear()
            assert self.store.stored_tokens == 0
            assert self.store._table.stored == 0
            assert self.store._arena.free_pages == self.store._arena.capacity_pages


StoreMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestStore = StoreMachine.TestCase


def random_tokens(size, seed=0):
    return np.random.default_rng(seed).integers(0, 30_000, size, dtype=np.int32)


def test_content_a_live_donor_holds_is_not_stored_again():
    store = DonorStore(2**22)
    wrapper = random_tokens(1_200, 1)
    for number in range(60):
        document = random_tokens(500, 100 + number)
        store.register(f"d{number}", np.concatenate([wrapper, document]), NAMESPACES[0])
    # Each further donor adds its document and the 31 tokens of overlap.
    assert store.stored_tokens == 1_700 + 59 * 531
    before = store.stored_tokens
    store.register("again", np.concatenate([wrapper, random_tokens(500, 100)]), NAMESPACES[0])
    assert store.stored_tokens == before


def test_shared_content_outlives_the_donor_that_brought_it():
    store = DonorStore(2**22)
    shared = random_tokens(600, 1)
    store.register("first", np.concatenate([random_tokens(100, 2), shared]), NAMESPACES[0])
    store.register("second", np.concatenate([shared, random_tokens(100, 3)]), NAMESPACES[0])
    store.evict("first")
    (run,) = store.lookup(shared, NAMESPACES[0]).runs
    assert (run.donor_id, run.donor_start, run.length) == ("second", 0, 600)
    # What only the first donor held is gone, although its chunk is still in memory.
    assert not store.lookup(random_tokens(100, 2), NAMESPACES[0]).runs


def test_a_document_behind_a_shared_wrapper_is_one_run():
    store = DonorStore(2**22)
    wrapper = random_tokens(300, 1)
    documents = [random_tokens(400, 10 + number) for number in range(5)]
    for number, document in enumerate(documents):
        store.register(f"d{number}", np.concatenate([wrapper, document]), NAMESPACES[0])
    target = np.concatenate([random_tokens(50, 99), wrapper, documents[3]])
    (run,) = store.lookup(target, NAMESPACES[0]).runs
    assert (run.donor_id, run.target_start, run.length) == ("d3", 50, 700)


@pytest.mark.parametrize("near_first", [True, False])
def test_of_two_versions_the_one_near_the_targets_position_is_named(near_first):
    """The other has the paragraphs in another order, and much that only it holds."""
    rng = np.random.default_rng(8)
    first, second, third, own = (rng.integers(0, 4000, size, dtype=np.int32) for size in [300] * 4)
    versions = {
        "near": np.concatenate((first, second, third)),
        "far": np.concatenate((second, first, own)),
    }
    store = DonorStore(2**22)
    for name in ("near", "far") if near_first else ("far", "near"):
        store.register(name, versions[name], NAMESPACES[0])
    target = np.concatenate((first, RNG.integers(0, 4000, 3, dtype=np.int32), second, own))
    runs = store.lookup(target, NAMESPACES[0]).runs
    check_identical(store.lookup(target, NAMESPACES[0]), target, versions)
    named = {run.target_start: run.donor_id for run in runs}
    assert (named[0], named[303], named[603]) == ("near", "near", "far")


def test_periodic_text_is_covered():
    store = DonorStore(2**22)
    store.register("zeros", np.zeros(300, dtype=np.int32), NAMESPACES[0])
    found = store.lookup(np.zeros(500, dtype=np.int32), NAMESPACES[0])
    assert positions_of(found) == set(range(500))


def test_namespaces_never_mix_and_empty_ones_are_forgotten():
    store = DonorStore(2**22)
    text = random_tokens(200)
    for number in range(50):
        store.register(f"d{number}", text, bytes([number]) * 16)
    assert {run.donor_id for run in store.lookup(text, bytes([7]) * 16).runs} == {"d7"}
    assert not store.lookup(text, b"x" * 16).runs
    store.clear()
    assert not store._namespaces


def test_the_least_recently_used_donor_makes_room():
    store = DonorStore(2**16)
    evicted: list[str] = []
    store.add_eviction_listener(evicted.append)
    number = 0
    while not evicted:
        store.register(f"d{number}", random_tokens(1_000, number), NAMESPACES[0])
        store.touch(("d0",))
        number += 1
    assert evicted[0] == "d1"
    assert "d0" in store


def test_a_prompt_larger_than_the_store_is_refused_and_evicts_nobody():
    store = DonorStore(2**16)
    store.register("small", random_tokens(500, 1), NAMESPACES[0])
    with pytest.raises(CapacityError):
        store.register("large", random_tokens(100_000, 2), NAMESPACES[0])
    assert len(store) == 1


def test_an_id_is_registered_once():
    store = DonorStore(2**20)
    store.register("d", random_tokens(100), NAMESPACES[0])
    with pytest.raises(DonorError, match="'d' is already registered"):
        store.register("d", random_tokens(100, 5), NAMESPACES[0])


def test_charged_bytes_cover_what_python_really_takes():
    """The arrays are charged by page; the objects beside them must fit their allowance."""
    store = DonorStore(64 * 2**20)
    texts = [random_tokens(2_000, seed) for seed in range(2_000)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number, text in enumerate(texts):
        store.register(f"request-{number:08d}", text, NAMESPACES[0])
    objects = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    from semblend.discovery.donor_store import CHUNK_BYTES, DONOR_BYTES

    assert objects <= 2_000 * (DONOR_BYTES + CHUNK_BYTES)
    assert store.used_bytes / store.stored_tokens <= 8.0


def test_concurrent_register_lookup_and_evict_stay_correct():
    store = DonorStore(2**19)
    texts = {f"d{number}": random_tokens(600, number) for number in range(300)}
    faults: list[BaseException] = []

    def work(offset):
        try:
            for donor_id, text in list(texts.items())[offset::3]:
                store.register(donor_id, text, NAMESPACES[0])
                target = np.concatenate([random_tokens(40, 7), text])
                check_identical(store.lookup(target, NAMESPACES[0]), target, texts)
                if int(donor_id[1:]) % 5 == 0:
                    store.evict(donor_id)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert store.used_bytes <= store.max_bytes
    for donor_id in list(texts):
        store.evict(donor_id)
    assert store._table.stored == 0
