"""The whole of a prompt is seen, however long it is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.errors import SettingsError, VectorError
from semblend.discovery.embedders import Embedder, Units, Vectors, make_embedder
from semblend.discovery.embedders.jaccard import JaccardEmbedder
from semblend.discovery.windows import (
    PIECES,
    PromptVectors,
    Window,
    cut_windows,
    embed_text,
    similarity,
)

COSTS = st.lists(st.integers(1, 12), max_size=400).map(lambda c: np.array(c, dtype=np.int64))
SHAPES = {"size": st.integers(12, 64), "overlap": st.sampled_from([0.0, 0.125, 0.5, 0.9])}


class Recorder(Embedder):
    """Jaccard vectors of windows cut for another embedder, with what was read."""

    def __init__(self, inner: Embedder) -> None:
        self.inner, self.read = inner, [""]
        self.jaccard = JaccardEmbedder()
        self.name, self.model, self.dimension = "recorder", "none", self.jaccard.dimension
        self.window_tokens, self.max_windows = inner.window_tokens, inner.max_windows

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.read = list(texts)
        return self.jaccard.embed(texts)

    def units(self, text: str) -> Units:
        return self.inner.units(text)


def unread_stretch(windows: tuple[Window, ...]) -> int:
    pieces = sorted(piece for window in windows for piece in window.pieces)
    reached, longest = pieces[0][1], 0
    for _, (first, last) in pairwise(pieces):
        longest = max(longest, first - reached)
        reached = max(reached, last)
    return longest


@given(costs=COSTS, max_windows=st.integers(1, 40), **SHAPES)
def test_every_unit_lies_in_a_window_and_no_window_is_too_large(costs, size, overlap, max_windows):
    windows = cut_windows(costs, size=size, overlap=overlap, max_windows=max_windows)
    assert len(windows) <= max_windows
    covered = np.zeros(len(costs), dtype=bool)
    for window in windows:
        covered[window.start : window.end] = True
        assert sum(int(costs[a:b].sum()) for a, b in window.pieces) <= size
        assert window.pieces[-1][1] == window.end
        assert all(window.start <= a < b <= window.end for a, b in window.pieces)
        assert all(before[1] <= after[0] for before, after in pairwise(window.pieces))
    assert covered.all()


@given(costs=COSTS.filter(len), **SHAPES)
def test_everything_is_read_where_the_windows_suffice(costs, size, overlap):
    windows = cut_windows(costs, size=size, overlap=overlap, max_windows=10_000)
    assert all(window.is_whole for window in windows)
    assert unread_stretch(windows) == 0
    for before, after in pairwise(windows):
        assert after.start <= before.end, "a gap between windows"


@given(units=st.integers(1000, 20_000), size=st.sampled_from([64, 254]), windows=st.integers(1, 16))
def test_a_prompt_too_long_for_its_windows_is_touched_everywhere(units, size, windows):
    costs = np.ones(units, dtype=np.int64)
    cut = cut_windows(costs, size=size, max_windows=windows)
    width = units / (1 + (windows - 1) * 0.875)
    assert cut[0].pieces[0][0] == 0, "the prompt's first unit is read"
    assert cut[-1].pieces[-1][1] == units, "the prompt's last unit is read"
    assert unread_stretch(cut) <= max(width / (PIECES - 1), 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 0}, "size"),
        ({"overlap": 1.0}, "overlap"),
        ({"overlap": -0.1}, "overlap"),
        ({"max_windows": 0}, "max_windows"),
    ],
)
def test_impossible_windows_are_refused_by_name(wrong, message):
    with pytest.raises(SettingsError, match=message):
        cut_windows(np.ones(3, dtype=np.int64), **{"size": 8, "max_windows": 4, **wrong})


SENTENCE = "The {0} warden of gate {0} wrote down what passed it on day {0}, and who asked. "


@pytest.fixture(scope="module")
def long_prompt() -> str:
    text = "".join(SENTENCE.format(number) for number in range(1000))
    return text[:60_000]


@pytest.mark.parametrize("kind", ["jaccard", "static", "minilm"])
def test_a_60000_character_prompt_is_read_to_its_last_word(kind, long_prompt):
    recorder = Recorder(make_embedder(kind))
    seen = embed_text(recorder, long_prompt)
    assert seen.bounds[0, 0] == 0
    assert seen.bounds[-1, 1] == len(long_prompt.rstrip())
    starts = [long_prompt.index(text) for text in recorder.read]
    assert starts == sorted(starts)
    position = 0
    for start, text in zip(starts, recorder.read, strict=True):
        assert not long_prompt[position:start].strip(), "characters that no window reads"
        position = start + len(text)


@pytest.mark.parametrize("kind", ["jaccard", "static"])
@pytest.mark.parametrize("place", [0, 30_000, 59_900])
def test_a_difference_anywhere_in_a_long_prompt_changes_its_vectors(kind, place, long_prompt):
    embedder = make_embedder(kind)
    word = " zeppelin quartz "
    changed = long_prompt[:place] + word + long_prompt[place + len(word) :]
    before, after = embed_text(embedder, long_prompt), embed_text(embedder, changed)
    assert not np.allclose(before.pooled, after.pooled, atol=1e-6)
    differs = np.abs(before.windows - after.windows[: len(before.windows)]).max(axis=1) > 1e-6
    touched = (before.bounds[:, 0] < place + len(word)) & (before.bounds[:, 1] > place)
    assert differs[touched].all()


def test_minilm_windows_are_never_cut_off_by_the_model():
    minilm = make_embedder("minilm")
    # Digits, scripts without spaces and spelt-out special tokens take a token a character.
    text = "0x3f9 漢字かな交じり文 [SEP] supercalifragilistic_identifier.attribute(value) " * 120
    recorder = Recorder(minilm)
    embed_text(recorder, text)
    assert len(recorder.read) > 10
    for window in recorder.read:
        assert int(minilm.units(window).costs.sum()) <= minilm.window_tokens


def test_the_same_passages_in_another_order_stay_similar_and_others_do_not():
    embedder = make_embedder("static")
    topics = ("harbour cranes lift steel crates", "bees store honey in wax cells", "judges weigh")
    parts = [f"{topic} in the {n}th month of the year. " * 40 for n, topic in enumerate(topics)]
    prompt = embed_text(embedder, "".join(parts))
    reordered = embed_text(embedder, "".join(reversed(parts)))
    other = embed_text(embedder, "def parse(line): return line.split(',')[1].strip()\n" * 120)
    assert similarity(prompt.windows, reordered.windows) > 0.9
    assert similarity(prompt.windows, other.windows) < 0.5


def test_a_prompt_inside_a_longer_donor_is_wholly_found():
    embedder = make_embedder("jaccard")
    donor = [SENTENCE.format(n) for n in range(300)]
    inside = embed_text(embedder, "".join(donor[100:140]))
    whole = embed_text(embedder, "".join(donor))
    assert similarity(inside.windows, whole.windows) > similarity(whole.windows, inside.windows)


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 30), limit=st.integers(1, 40))
def test_condensing_keeps_the_ends_and_the_bound(seed, rows, limit):
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((rows, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    bounds = np.stack([np.arange(rows) * 10, np.arange(rows) * 10 + 12], axis=1)
    condensed = PromptVectors(windows=vectors, bounds=bounds).condensed(limit)
    assert len(condensed.windows) == min(rows, limit)
    assert condensed.bounds[0, 0] == 0
    assert condensed.bounds[-1, 1] == bounds[-1, 1]
    assert (condensed.bounds[1:, 0] <= condensed.bounds[:-1, 1]).all()
    assert similarity(vectors, vectors) == pytest.approx(1.0, abs=1e-5)


def test_condensing_to_nothing_is_refused():
    prompt = embed_text(make_embedder("jaccard"), "some words")
    with pytest.raises(SettingsError, match="limit"):
        prompt.condensed(0)


@pytest.mark.parametrize("text", ["", "   \n\t "])
def test_a_prompt_without_content_has_no_windows_and_resembles_nothing(text):
    embedder = make_embedder("jaccard")
    empty, some = embed_text(embedder, text), embed_text(embedder, "some words")
    assert empty.windows.shape == (0, embedder.dimension)
    assert not empty.pooled.any()
    assert similarity(empty.windows, some.windows) == 0.0
    assert similarity(some.windows, empty.windows) == 0.0


@pytest.mark.parametrize("kind", ["jaccard", "static", "minilm"])
def test_half_a_character_is_no_reason_to_fail(kind):
    seen = embed_text(make_embedder(kind), "half a \ud83e character")
    assert seen.bounds.tolist() == [[0, 18]]


def test_vectors_of_two_spaces_are_not_compared():
    with pytest.raises(VectorError, match="expected"):
        similarity(np.ones((1, 3), dtype=np.float32), np.ones((1, 4), dtype=np.float32))


def test_the_none_embedder_sees_nothing():
    none = make_embedder("none")
    assert embed_text(none, "words").windows.shape == (0, 0)
