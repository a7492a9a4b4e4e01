"""Plays stories without an engine to see how much of each turn could be reused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from sembench.conversations.measuring import EarlierRequests
from sembench.conversations.rendering import prompt_of
from sembench.conversations.story import Story, scripted_turns
from sembench.conversations.turn_rows import TurnRow
from sembench.tokenizers import Tokenizer


def offline_turns(
    stories: Iterable[Story], tokenizer: Tokenizer, reuse: EarlierRequests
) -> Iterator[TurnRow]:
    """Yield one row per turn. Stories run one after another, and all earlier turns stay known."""
    for story in stories:
        for turn in scripted_turns(story):
            text, said = prompt_of(turn), turn.answer.decoded
            prompt = tokenizer.encode(text)
            yield TurnRow.of(turn, reuse.measure(turn.turn_id, prompt, text))
            answer = tokenizer.encode(said)
            reuse.remember(turn.turn_id, np.concatenate([prompt, answer]), text + said)
