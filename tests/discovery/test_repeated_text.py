"""Promise: text that repeats itself is found whole, and costs about what other text costs."""

from __future__ import annotations

import numpy as np
import pytest

from semblend.core.tokens import TokenArray
from semblend.discovery.donor_store import DonorStore
from semblend.discovery.matching import most_runs

NAMESPACE = b"one"


def _written(tokens: int, seed: int) -> TokenArray:
    return np.random.default_rng(seed).integers(100, 50_000, tokens)


def _lookup(donor: TokenArray, target: TokenArray) -> tuple[int, int, int]:
    """(runs, tokens covered, fingerprint hits); every run is checked against the donor."""
    store = DonorStore(max_bytes=64 * 2**20)
    store.register("donor", donor, NAMESPACE)
    found = store.lookup(target, NAMESPACE)
    covered = np.zeros(target.size, dtype=bool)
    for run in found.runs:
        here = slice(run.target_start, run.target_end)
        there = slice(run.donor_start, run.donor_start + run.length)
        assert np.array_equal(target[here], donor[there])
        covered[here] = True
    return len(found.runs), int(covered.sum()), found.fingerprint_hits


@pytest.mark.parametrize("period", [1, 2, 3, 7, 16, 17, 18, 40, 64, 300])
def test_every_period_is_found_whole_with_few_runs(period: int) -> None:
    tokens = 8_000
    text = np.tile(_written(period, seed=period), -(-tokens // period))[:tokens]
    donor = np.concatenate((_written(61, seed=1), text))
    target = np.concatenate((_written(97, seed=2), text))
    runs, covered, _ = _lookup(donor, target)
    # The last copy of a period may need a run that begins elsewhere; below 32 tokens none is.
    assert covered >= tokens - 32
    assert runs <= most_runs(target.size)


def test_repeats_between_other_text_are_covered() -> None:
    """Each stretch of one token stands behind words of its own in donor and target."""
    donor = np.concatenate(
        [np.concatenate((_written(20, seed=n), np.full(200, 7))) for n in range(60)]
    )
    target = np.concatenate(
        [np.concatenate((_written(20, seed=n + 500), np.full(200, 7))) for n in range(60)]
    )
    runs, covered, _ = _lookup(donor, target)
    assert covered >= 60 * 200 - 60
    assert runs <= most_runs(target.size)


def test_one_repeated_token_asks_the_index_no_more_than_other_text() -> None:
    """A prompt can be made of one token by anyone; its lookup runs on the scheduler's thread."""
    plain = _written(8_000, seed=3)
    _, _, usual = _lookup(plain, plain)
    _, covered, hits = _lookup(np.full(8_000, 7), np.full(8_000, 7))
    assert covered == 8_000
    assert hits <= 10 * usual
