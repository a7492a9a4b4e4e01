"""Identical runs in edited text: found, verified, with bounded work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import LCSseq

from semblend.core.errors import InvalidTokensError, SettingsError
from semblend.discovery import alignment
from semblend.discovery.alignment import (
    MAX_BANDS,
    MAX_EDIT_TOKENS,
    Alignment,
    align,
    edit_similarity,
)

SEEDS = st.integers(0, 2**32 - 1)


def common_run_mask(target: np.ndarray, donor: np.ndarray, min_run: int) -> np.ndarray:
    """Brute force: which target tokens lie in any run of `min_run` that the donor has."""
    mask = np.zeros(len(target), dtype=bool)
    grams = {tuple(donor[i : i + min_run]) for i in range(len(donor) - min_run + 1)}
    for start in range(len(target) - min_run + 1):
        if tuple(target[start : start + min_run]) in grams:
            mask[start : start + min_run] = True
    return mask


def check_runs(found: Alignment, target: np.ndarray, donor: np.ndarray, min_run: int) -> None:
    position = 0
    for run in found.runs:
        assert run.length >= min_run
        assert run.target_start >= position, "runs overlap or are unordered"
        assert run.donor_start >= 0
        assert run.donor_start + run.length <= len(donor)
        np.testing.assert_array_equal(
            target[run.target_start : run.target_end],
            donor[run.donor_start : run.donor_start + run.length],
        )
        position = run.target_end
    assert position <= len(target)
    assert 0.0 <= found.similarity <= 1.0
    assert found.matched_tokens == round(found.similarity * len(target))


def edited(rng: np.random.Generator, document: np.ndarray, every: int) -> np.ndarray:
    """The document with a small substitution, insertion or deletion about every so many tokens."""
    parts, position = [], 0
    while position < len(document):
        step = int(rng.integers(every // 2, every + every // 2 + 1))
        parts.append(document[position : position + step])
        position += step
        kind = rng.integers(3)
        if kind != 0:
            parts.append(rng.integers(60_000, 70_000, rng.integers(1, 4)))
        if kind != 1:
            position += int(rng.integers(1, 4))
    return np.concatenate(parts).astype(np.int32)


@given(seed=SEEDS, vocabulary=st.sampled_from([2, 4, 50]), min_run=st.integers(5, 16))
def test_every_run_is_identical_disjoint_and_long_enough(seed, vocabulary, min_run):
    rng = np.random.default_rng(seed)
    target = rng.integers(0, vocabulary, rng.integers(0, 400)).astype(np.int32)
    donor = rng.integers(0, vocabulary, rng.integers(0, 400)).astype(np.int32)
    if len(target) > 60 and len(donor) > 60:
        donor[5:55] = target[:50]
    check_runs(align(target, donor, min_run=min_run), target, donor, min_run)


@settings(max_examples=40)
@given(seed=SEEDS, every=st.integers(14, 40), length=st.integers(100, 2500))
def test_what_brute_force_finds_in_edited_text_is_found(seed, every, length):
    rng = np.random.default_rng(seed)
    donor = rng.integers(0, 50_000, length).astype(np.int32)
    preamble = rng.integers(50_000, 60_000, rng.integers(0, 300)).astype(np.int32)
    target = np.concatenate([preamble, edited(rng, donor, every)])
    found = align(target, donor, min_run=8)
    check_runs(found, target, donor, 8)
    assert found.matched_tokens == common_run_mask(target, donor, 8).sum()


@settings(max_examples=25)
@given(seed=SEEDS, passages=st.integers(2, 8))
def test_edited_passages_are_found_in_any_order(seed, passages):
    rng = np.random.default_rng(seed)
    parts = [rng.integers(0, 50_000, 200).astype(np.int32) for _ in range(passages)]
    donor = np.concatenate(parts)
    order = rng.permutation(passages)
    target = np.concatenate([edited(rng, parts[number], 30) for number in order])
    found = align(target, donor, min_run=8)
    check_runs(found, target, donor, 8)
    # A window may straddle more passages than the donor regions it is compared with.
    assert found.matched_tokens >= 0.95 * common_run_mask(target, donor, 8).sum()


@settings(max_examples=25)
@given(seed=SEEDS)
def test_phrases_that_a_transcript_repeats_do_not_mislead(seed):
    rng = np.random.default_rng(seed)
    phrases = [rng.integers(0, 1000, rng.integers(5, 9)) for _ in range(120)]
    turns = []
    for _ in range(150):
        turns.append(phrases[int(rng.integers(len(phrases)))])
        turns.append(rng.integers(1000, 50_000, rng.integers(1, 30)))
    donor = np.concatenate(turns).astype(np.int32)
    target = edited(rng, donor, 24)
    found = align(target, donor, min_run=10)
    check_runs(found, target, donor, 10)
    assert found.matched_tokens >= 0.99 * common_run_mask(target, donor, 10).sum()


def test_a_run_longer_than_any_window_comes_back_in_one_piece():
    document = np.random.default_rng(0).integers(0, 50_000, 9000).astype(np.int32)
    target = np.concatenate([np.arange(77, dtype=np.int32), document])
    found = align(target, document)
    assert [(r.target_start, r.donor_start, r.length) for r in found.runs] == [(77, 0, 9000)]


def test_a_phrase_that_both_texts_happen_to_use_is_not_a_run():
    rng = np.random.default_rng(3)
    target, donor = (rng.integers(0, 50_000, 1000).astype(np.int32) for _ in range(2))
    target[500:510] = donor[100:110]
    assert align(target, donor).runs == ()
    target[500:564] = donor[100:164]
    assert align(target, donor).matched_tokens == 64


def test_unrelated_text_aligns_nowhere():
    rng = np.random.default_rng(1)
    target, donor = (rng.integers(0, 50_000, 3000).astype(np.int32) for _ in range(2))
    assert align(target, donor) == Alignment(runs=(), similarity=0.0)


@pytest.mark.parametrize("tokens", [[], [1, 2, 3]])
def test_prompts_too_short_to_share_a_run_align_nowhere(tokens):
    assert align(tokens, list(range(100))).runs == ()
    assert align(list(range(100)), tokens).runs == ()


def test_the_work_is_bounded_however_alike_and_long_the_prompts_are(monkeypatch):
    diffs: list[int] = []

    class Counted:
        @staticmethod
        def editops(a: list[int], b: list[int]) -> object:
            diffs.append(len(a) * len(b))
            return LCSseq.editops(a, b)

    monkeypatch.setattr(alignment, "LCSseq", Counted)
    rng = np.random.default_rng(2)
    # Eight-fold repetition: as many seeds as are followed at all, pointing everywhere.
    phrase = rng.integers(0, 50_000, 1000).astype(np.int32)
    donor, target = np.tile(phrase, 8), np.tile(phrase, 16)
    found = align(target, donor, max_windows=5)
    check_runs(found, target, donor, 8)
    assert len(diffs) <= 5 * MAX_BANDS
    window = alignment.WINDOW_TOKENS + 2 * alignment.MARGIN
    assert max(diffs) <= window * alignment.REGION_TOKENS


def test_a_donor_of_one_token_repeated_costs_nothing():
    same = np.zeros(100_000, dtype=np.int32)
    assert align(same, same).runs == ()


@pytest.mark.parametrize(
    "wrong", [{"min_run": 4}, {"seed_tokens": 1}, {"max_windows": 0}, {"seed_tokens": 9}]
)
def test_impossible_settings_are_refused_by_name(wrong):
    with pytest.raises(SettingsError, match="alignment"):
        align([1] * 20, [1] * 20, **wrong)


def test_what_is_not_tokens_is_refused():
    with pytest.raises(InvalidTokensError, match="donor"):
        align([1] * 20, [-1] * 20)


def window(rng: np.random.Generator, length: int) -> np.ndarray:
    """Token ids with a natural text's frequencies: a few are everywhere, most are rare."""
    return (rng.zipf(1.3, length) % 50_000).astype(np.int32)


@given(seed=SEEDS, length=st.integers(32, MAX_EDIT_TOKENS), edit=st.integers(1, 6))
def test_a_small_edit_leaves_a_window_alike_and_unrelated_text_is_not(seed, length, edit):
    rng = np.random.default_rng(seed)
    text = rng.integers(0, 50_000, length).astype(np.int32)
    place = int(rng.integers(0, length - edit))
    changed = np.concatenate(
        [text[:place], rng.integers(50_000, 60_000, edit), text[place + edit :]]
    )
    unrelated = rng.integers(0, 50_000, length).astype(np.int32)
    assert edit_similarity(text, text) == 1.0
    assert edit_similarity(text, changed.astype(np.int32)) >= 1 - (edit + 2) / length
    assert edit_similarity(text, unrelated) <= 0.1


@given(seed=SEEDS)
def test_common_words_alone_do_not_make_windows_alike(seed):
    rng = np.random.default_rng(seed)
    assert edit_similarity(window(rng, 64), window(rng, 64)) < 0.4
    half = np.arange(64, dtype=np.int32)
    other = np.concatenate([half[:32], np.arange(1000, 1032, dtype=np.int32)])
    assert edit_similarity(half, other) == pytest.approx(0.5)


@pytest.mark.parametrize(("a", "b", "expected"), [([], [1], 0), ([5], [5], 1), ([5], [6], 0)])
def test_the_shortest_windows_have_an_answer(a, b, expected):
    assert edit_similarity(np.array(a, dtype=np.int32), np.array(b, dtype=np.int32)) == expected


def test_windows_that_are_not_short_are_refused():
    long = np.zeros(MAX_EDIT_TOKENS + 1, dtype=np.int32)
    with pytest.raises(InvalidTokensError, match="at most"):
        edit_similarity(long, long[:3])
