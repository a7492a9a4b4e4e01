"""Winnowed fingerprints keep their guarantee and their density."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend.discovery.fingerprints import (
    GRAM_TOKENS,
    GUARANTEED_RUN_TOKENS,
    WINDOW_GRAMS,
    fingerprints,
    gram_hashes,
    winnow,
)

token = st.integers(min_value=0, max_value=2**31 - 1)


def tokens_of(values):
    return np.asarray(values, dtype=np.int32)


@given(
    run=st.lists(token, min_size=GUARANTEED_RUN_TOKENS, max_size=80),
    first=st.lists(token, max_size=60),
    second=st.lists(token, max_size=60),
    after=st.lists(token, max_size=60),
)
def test_any_shared_run_of_32_tokens_shares_a_fingerprint(run, first, second, after):
    """Law: x + run + y and u + run + v keep a gram of the run in common, at any shift."""
    one, _ = fingerprints(tokens_of(first + run + after), seed=7)
    two, _ = fingerprints(tokens_of(second + run), seed=7)
    assert set(one.tolist()) & set(two.tolist())


@given(values=st.lists(st.integers(0, 3), min_size=48, max_size=200))
def test_winnowing_keeps_exactly_the_minima_of_windows(values):
    hashes = gram_hashes(tokens_of(values), seed=1)
    expected = set()
    for start in range(len(hashes) - WINDOW_GRAMS + 1):
        window = hashes[start : start + WINDOW_GRAMS].tolist()
        smallest = min(window)
        expected.update(start + at for at, value in enumerate(window) if value == smallest)
    assert set(winnow(hashes).tolist()) == expected


@given(values=st.lists(token, min_size=16, max_size=64))
def test_a_gram_hash_depends_on_its_sixteen_tokens_alone(values):
    hashes = gram_hashes(tokens_of(values), seed=3)
    assert len(hashes) == len(values) - GRAM_TOKENS + 1
    for start in (0, len(hashes) - 1):
        alone = gram_hashes(tokens_of(values[start : start + GRAM_TOKENS]), seed=3)
        assert hashes[start] == alone[0]


def test_one_changed_token_changes_every_gram_that_holds_it():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 50_000, 400, dtype=np.int32)
    changed = values.copy()
    changed[200] += 1
    different = gram_hashes(values, 5) != gram_hashes(changed, 5)
    assert np.flatnonzero(different).tolist() == list(range(185, 201))


def test_namespaces_have_other_fingerprints():
    values = np.arange(1000, dtype=np.int32)
    assert not set(gram_hashes(values, 1).tolist()) & set(gram_hashes(values, 2).tolist())


def test_density_is_two_in_eighteen():
    values = np.random.default_rng(1).integers(0, 30_000, 200_000, dtype=np.int32)
    kept = winnow(gram_hashes(values, 9)).size
    assert kept / values.size == pytest.approx(2 / (WINDOW_GRAMS + 1), rel=0.03)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 31])
def test_runs_too_short_to_guarantee_have_no_fingerprint(size):
    hashes, positions = fingerprints(np.zeros(size, dtype=np.int32), 0)
    assert hashes.size == positions.size == 0
