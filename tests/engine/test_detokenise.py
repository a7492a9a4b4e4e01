"""Streamed text adds up to the whole text, and never shows any of a stop string."""

from __future__ import annotations

import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend.engine.output.detokenise import StopStrings, StreamDecoder
from tests.engine.models import REFERENCE

TOKENIZER = transformers.AutoTokenizer.from_pretrained(REFERENCE)


@given(st.text(max_size=60))
@settings(max_examples=150, deadline=None)
def test_streamed_text_is_the_whole_text(text: str) -> None:
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    decoder = StreamDecoder(TOKENIZER)
    streamed = "".join(decoder.push(token_id) for token_id in ids) + decoder.flush()
    assert streamed == TOKENIZER.decode(ids, skip_special_tokens=True)


def test_an_unfinished_character_is_held_back() -> None:
    ids = TOKENIZER("🙂", add_special_tokens=False)["input_ids"]
    assert len(ids) > 1
    decoder = StreamDecoder(TOKENIZER)
    assert [decoder.push(token_id) for token_id in ids] == [""] * (len(ids) - 1) + ["🙂"]


@given(
    pieces=st.lists(st.text("abc", max_size=4), max_size=12),
    stops=st.lists(st.text("abc", min_size=1, max_size=3), max_size=3),
)
def test_text_up_to_the_first_stop_string_is_shown_and_nothing_of_it(
    pieces: list[str], stops: list[str]
) -> None:
    matcher, shown, stopped = StopStrings(stops), "", False
    seen = ""
    for piece in pieces:
        seen += piece
        text, stopped = matcher.push(piece)
        shown += text
        assert not any(stop in shown for stop in stops)
        if stopped:
            break
    if not stopped:
        shown += matcher.flush()
    ends = [seen.find(stop) for stop in stops if stop in seen]
    assert stopped == bool(ends)
    assert shown == (seen[: min(ends)] if ends else seen)
