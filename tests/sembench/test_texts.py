"""Text operations: what is cut can be put together again."""

from hypothesis import given
from hypothesis import strategies as st

from sembench.texts import join_sentences, lower_first, sentences, split_context, split_evenly
from tests.sembench.records import any_record

prose = st.text(alphabet="ab. \n?A", max_size=400)


@given(prose)
def test_sentences_join_to_the_text(text):
    assert join_sentences(sentences(text)) == text


@given(any_record, st.integers(2, 6), st.integers(50, 600))
def test_even_pieces_hold_the_whole_document(record, max_segments, min_chars):
    pieces = split_evenly(record.context, max_segments=max_segments, min_chars=min_chars)
    assert 1 <= len(pieces) <= max_segments
    assert "".join("".join(pieces).split()) == "".join(record.context.split())
    assert all(len(piece) >= min_chars / 2 - 1 for piece in pieces)


@given(prose.filter(str.strip), st.integers(2, 6), st.integers(1, 100))
def test_cutting_ends_for_any_text(text, max_segments, min_chars):
    pieces = split_context(text, max_segments=max_segments, min_chars=min_chars)
    assert len(pieces) <= max_segments
    assert all(piece in text and piece.strip() == piece for piece in pieces)


def test_paragraphs_are_segments_where_there_are_enough():
    long = [letter * 50 for letter in "abcde"]
    text = "Heading\n\n" + "\n\n".join(long)
    assert split_context(text, max_segments=3, min_chars=40) == long[:3]


def test_pieces_end_at_sentences_where_one_is_near():
    text = ("A sentence of some words here. " * 100).strip()
    pieces = split_evenly(text, max_segments=3, min_chars=100)
    assert len(pieces) == 3
    assert all(piece.endswith(".") for piece in pieces)


def test_small_first_letters_spare_abbreviations():
    assert lower_first("Which one?") == "which one?"
    assert lower_first("NASA said so") == "NASA said so"
    assert lower_first("A dog") == "a dog"
