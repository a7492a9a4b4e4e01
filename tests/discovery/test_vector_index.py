"""Cosine search equals brute force, across tiers, deletions and namespaces, within its bytes."""

from __future__ import annotations

import logging
import sys
import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from semblend.core.errors import CapacityError, NamespaceError, SettingsError, VectorError
from semblend.discovery.vector_index import VectorIndex, VectorMatch
from semblend.discovery.vector_shard import MAX_VECTORS_PER_DONOR, MOVES_PER_ADD

DIMENSION = 12
HALF_PRECISION = 2e-3
NAMESPACES = [b"a", b"b"]


def unit_rows(rng: np.random.Generator, count: int, dimension: int = DIMENSION) -> np.ndarray:
    rows = rng.standard_normal((count, dimension)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def brute_force(
    donors: dict[str, np.ndarray], queries: np.ndarray, k: int
) -> list[tuple[str, float]]:
    scored = [(donor, float((rows @ queries.T).max())) for donor, rows in donors.items()]
    return sorted(scored, key=lambda pair: -pair[1])[:k]


def check_matches(
    matches: list[VectorMatch], donors: dict[str, np.ndarray], queries: np.ndarray, k: int
) -> None:
    """The k best cosines, each with a donor that has it (half precision may swap near ties)."""
    expected = brute_force(donors, queries, k)
    assert len(matches) == len(expected)
    assert len({match.donor_id for match in matches}) == len(matches)
    for match, (_, cosine) in zip(matches, expected, strict=True):
        assert match.cosine == pytest.approx(cosine, abs=HALF_PRECISION)
        own = float((donors[match.donor_id] @ queries.T).max())
        assert match.cosine == pytest.approx(own, abs=HALF_PRECISION)


class IndexMachine(RuleBasedStateMachine):
    """Any order of additions, removals and searches answers as a table of all vectors would."""

    @initialize(seed=st.integers(0, 2**32 - 1))
    def start(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.index = VectorIndex(DIMENSION, exact_limit=24)
        self.held: dict[bytes, dict[str, np.ndarray]] = {name: {} for name in NAMESPACES}

    @rule(
        namespace=st.sampled_from(NAMESPACES), donor=st.integers(0, 60), vectors=st.integers(1, 4)
    )
    def add(self, namespace: bytes, donor: int, vectors: int) -> None:
        rows = unit_rows(self.rng, vectors)
        self.index.add(str(donor), rows, namespace=namespace)
        self.held[namespace][str(donor)] = rows

    @rule(namespace=st.sampled_from(NAMESPACES), count=st.integers(10, 40))
    def add_many(self, namespace: bytes, count: int) -> None:
        for number in range(count):
            rows = unit_rows(self.rng, 1)
            self.index.add(f"m{number}", rows, namespace=namespace)
            self.held[namespace][f"m{number}"] = rows

    @rule(namespace=st.sampled_from(NAMESPACES), donor=st.integers(0, 60))
    def remove(self, namespace: bytes, donor: int) -> None:
        held = self.held[namespace].pop(str(donor), None)
        assert self.index.remove(str(donor), namespace=namespace) == (held is not None)

    @rule(namespace=st.sampled_from(NAMESPACES), share=st.floats(0.3, 1.0))
    def remove_many(self, namespace: bytes, share: float) -> None:
        for donor in list(self.held[namespace]):
            if self.rng.random() < share:
                del self.held[namespace][donor]
                assert self.index.remove(donor, namespace=namespace)

    @rule(namespace=st.sampled_from(NAMESPACES), queries=st.integers(1, 3), k=st.integers(1, 6))
    def search(self, namespace: bytes, queries: int, k: int) -> None:
        rows = unit_rows(self.rng, queries)
        check_matches(
            self.index.search(rows, k, namespace=namespace), self.held[namespace], rows, k
        )

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def search_for_a_held_vector(self, data: st.DataObject) -> None:
        namespace = data.draw(st.sampled_from([n for n in NAMESPACES if self.held[n]]))
        donor = data.draw(st.sampled_from(sorted(self.held[namespace])))
        rows = self.held[namespace][donor]
        matches = self.index.search(rows, 1, namespace=namespace)
        assert matches[0].cosine == pytest.approx(1.0, abs=HALF_PRECISION)
        held = self.index.get(donor, namespace=namespace)
        np.testing.assert_allclose(held, rows, atol=HALF_PRECISION)

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "index"):
            return
        stats = self.index.stats
        assert stats.donors == len(self.index) == sum(len(held) for held in self.held.values())
        rows = sum(len(rows) for held in self.held.values() for rows in held.values())
        assert stats.vectors == rows == stats.exact_vectors + stats.graph_vectors
        assert stats.namespaces == sum(bool(held) for held in self.held.values())


TestIndexEqualsBruteForce = IndexMachine.TestCase
TestIndexEqualsBruteForce.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None
)


def filled(count: int, *, exact_limit: int, dimension: int = DIMENSION) -> tuple[VectorIndex, dict]:
    rng = np.random.default_rng(count)
    index = VectorIndex(dimension, exact_limit=exact_limit)
    rows = unit_rows(rng, count, dimension)
    for number, row in enumerate(rows):
        index.add(str(number), row, namespace=b"n")
    return index, {str(number): row[None] for number, row in enumerate(rows)}


def test_below_the_limit_every_vector_is_scanned():
    index, _ = filled(100, exact_limit=100)
    assert index.stats.graph_vectors == 0


def test_no_addition_pays_for_building_the_graph():
    index = VectorIndex(DIMENSION, exact_limit=100)
    in_graph = 0
    for number, row in enumerate(unit_rows(np.random.default_rng(0), 400)):
        index.add(str(number), row, namespace=b"n")
        moved = index.stats.graph_vectors - in_graph
        assert 0 <= moved <= MOVES_PER_ADD
        in_graph += moved
    assert index.stats.exact_vectors <= 100 // 8 + 1, "only recent rows are still scanned"


def test_the_newest_donors_are_in_the_exact_part():
    index, donors = filled(400, exact_limit=100)
    for number in range(390, 400):
        matches = index.search(donors[str(number)], 1, namespace=b"n")
        assert matches == [VectorMatch(str(number), pytest.approx(1.0, abs=1e-6))]


def test_many_deletions_leave_the_answers_right_and_make_them_exact_again():
    index, donors = filled(600, exact_limit=100)
    rng = np.random.default_rng(1)
    for donor in rng.permutation(list(donors))[:420]:
        assert index.remove(donor, namespace=b"n")
        del donors[donor]
    queries = unit_rows(rng, 1)
    check_matches(index.search(queries, 5, namespace=b"n"), donors, queries, 5)
    assert index.stats.graph_vectors > 0
    for donor in list(donors)[: len(donors) - 40]:
        index.remove(donor, namespace=b"n")
        del donors[donor]
    assert index.stats.graph_vectors == 0
    check_matches(index.search(queries, 5, namespace=b"n"), donors, queries, 5)


def test_churn_at_constant_size_keeps_recall_and_bytes():
    index, donors = filled(1000, exact_limit=200, dimension=32)
    rng = np.random.default_rng(2)
    before = index.stats.nbytes
    for number in range(1000, 4000):
        index.remove(str(number - 1000), namespace=b"n")
        del donors[str(number - 1000)]
        row = unit_rows(rng, 1, 32)
        index.add(str(number), row, namespace=b"n")
        donors[str(number)] = row
    assert index.stats.nbytes <= 1.1 * before
    queries = unit_rows(rng, 60, 32)
    right = sum(
        index.search(query, 1, namespace=b"n")[0].donor_id
        == brute_force(donors, query[None], 1)[0][0]
        for query in queries
    )
    assert right >= 59


def test_a_namespace_never_sees_another_even_when_it_has_nothing_itself():
    index, donors = filled(300, exact_limit=50)
    for other in (b"", b"m", b"nn"):
        assert index.search(donors["7"], 10, namespace=other) == []
        assert index.get("7", namespace=other) is None
        assert not index.remove("7", namespace=other)
    index.add("7", unit_rows(np.random.default_rng(9), 1), namespace=b"m")
    assert [match.donor_id for match in index.search(donors["7"], 9, namespace=b"m")] == ["7"]
    assert index.remove("7", namespace=b"m")
    assert (b"n", "7") in index, "the same name in another namespace is another donor"


def test_registering_a_donor_again_replaces_its_vectors():
    index = VectorIndex(2)
    index.add("a", np.array([[1.0, 0.0], [0.0, 1.0]]), namespace=b"n")
    index.add("a", np.array([[-1.0, 0.0]]), namespace=b"n")
    assert index.stats.vectors == 1
    assert index.search(np.array([0.0, 1.0]), 1, namespace=b"n")[0].cosine == 0.0


@pytest.mark.parametrize("exact_limit", [10_000, 64])
def test_the_index_stays_within_its_bytes_and_drops_the_oldest(exact_limit):
    bound = 24 * 2**20
    index = VectorIndex(256, max_bytes=bound, exact_limit=exact_limit)
    rng = np.random.default_rng(3)
    for number in range(16_000 if exact_limit > 1000 else 5_000):
        index.add(str(number), unit_rows(rng, 1, 256), namespace=b"n")
        if number % 100 == 0:
            assert index.stats.nbytes <= bound
    stats = index.stats
    assert stats.nbytes <= bound
    assert stats.dropped_donors == number + 1 - stats.donors > 0
    assert (b"n", str(number)) in index
    assert (b"n", "0") not in index
    assert stats.vectors > 2_000, "the bound is used, not shied away from"


@pytest.mark.parametrize("namespaces", [1, 400])
def test_the_bytes_it_reports_are_no_fewer_than_it_takes(namespaces):
    rng = np.random.default_rng(5)
    tracemalloc.start()
    try:
        index = VectorIndex(64, max_bytes=4 * 2**20)
        for number in range(12_000):
            name = str(number % namespaces).encode()
            index.add(f"{number:032x}", unit_rows(rng, 1, 64), namespace=name)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert index.stats.dropped_donors > 0
    assert taken <= index.max_bytes
    assert taken <= index.stats.nbytes * 1.05


def test_without_usearch_every_search_is_exact_and_the_log_says_so_once(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "usearch.index", None)
    with caplog.at_level(logging.WARNING, logger="semblend.vector_index"):
        index, donors = filled(200, exact_limit=50)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "usearch" in caplog.text
    assert index.stats.exact_vectors == 200
    queries = unit_rows(np.random.default_rng(4), 2)
    check_matches(index.search(queries, 7, namespace=b"n"), donors, queries, 7)


def test_threads_share_an_index_and_each_finds_its_own():
    index = VectorIndex(DIMENSION, exact_limit=40)
    failures: list[BaseException] = []

    def work(name: bytes) -> None:
        try:
            rng = np.random.default_rng(name[0])
            donors: dict[str, np.ndarray] = {}
            for number in range(150):
                donors[str(number)] = unit_rows(rng, 2)
                index.add(str(number), donors[str(number)], namespace=name)
                if number % 3 == 0:
                    del donors[str(number // 2)]
                    index.remove(str(number // 2), namespace=name)
                    donors[str(number // 2)] = unit_rows(rng, 1)
                    index.add(str(number // 2), donors[str(number // 2)], namespace=name)
                if number % 10 == 0:
                    query = unit_rows(rng, 1)
                    check_matches(index.search(query, 3, namespace=name), donors, query, 3)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(bytes([97 + n]),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(index) == 4 * 150


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.ones((2, 3)), "expected"),
        (np.ones((1, 2, DIMENSION)), "expected"),
        (np.full((1, DIMENSION), np.nan), "finite"),
        (np.full((1, DIMENSION), np.inf), "finite"),
        (np.empty((0, DIMENSION)), "1 to"),
        (np.ones((MAX_VECTORS_PER_DONOR + 1, DIMENSION)), "1 to"),
    ],
)
def test_what_is_not_vectors_is_refused(vectors, message):
    index = VectorIndex(DIMENSION)
    with pytest.raises(VectorError, match=message):
        index.add("a", vectors, namespace=b"n")
    assert len(index) == 0


def test_impossible_arguments_are_refused_by_name():
    with pytest.raises(SettingsError, match="dimension"):
        VectorIndex(0)
    with pytest.raises(SettingsError, match="exact_limit"):
        VectorIndex(4, exact_limit=0)
    index = VectorIndex(DIMENSION, max_bytes=1000)
    with pytest.raises(NamespaceError, match="namespace"):
        index.add("a", np.ones(DIMENSION), namespace=b"")
    with pytest.raises(CapacityError, match="the limit is 1000"):
        index.add("a", np.ones((10, DIMENSION)), namespace=b"n")
    assert index.search(np.ones(DIMENSION), 0, namespace=b"n") == []
