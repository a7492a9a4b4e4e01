"""Brackets and quotations: inside them, whole sentences can be part of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from semblend.core.tokens import TokenArray

OPENERS = "([{（［｛「『【《〈"
CLOSERS = ")]}）］｝」』】》〉"
QUOTES = '"“”„‟«»‹›＂'
"""Marks that both open and close: “English”, „German“, «French», »Danish«. Single ones are also
apostrophes and count as nothing.
"""
UNREADABLE = "\ufffd"
"""In the text of a token that holds only some bytes of a character, which may be any mark."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Enclosures:
    """What each token id opens and closes, each of shape [vocabulary]."""

    brackets: npt.NDArray[np.int8]
    """Brackets opened, less those closed."""
    quotes: npt.NDArray[np.int8]
    """Quotation marks."""
    unreadable: npt.NDArray[np.bool_]
    any: npt.NDArray[np.bool_]
    """Any of these."""

    @classmethod
    def from_texts(cls, texts: Sequence[str]) -> Enclosures:
        """Build from the texts of all token ids, in order of id."""

        def count(text: str, marks: str) -> int:
            return min(100, sum(mark in marks for mark in text))

        brackets = np.asarray(
            [count(text, OPENERS) - count(text, CLOSERS) for text in texts], dtype=np.int8
        )
        quotes = np.asarray([count(text, QUOTES) for text in texts], dtype=np.int8)
        unreadable = np.asarray([UNREADABLE in text for text in texts], dtype=np.bool_)
        found = (brackets != 0) | (quotes != 0) | unreadable
        return cls(brackets=brackets, quotes=quotes, unreadable=unreadable, any=found)

    def any_in(self, known: TokenArray) -> bool:
        """Whether any token opens or closes something. Most text has none."""
        return bool(self.any[known].any())

    def inside(self, known: TokenArray) -> npt.NDArray[np.bool_]:
        """Whether the text may be enclosed after each token of a paragraph, shape [tokens].

        A bracket that closes nothing (a list's "1)") is ignored. After an unreadable token
        everything may be.
        """
        depth = np.cumsum(self.brackets[known], dtype=np.int64)
        depth -= np.minimum(np.minimum.accumulate(depth), 0) if len(depth) else 0
        quoted = np.cumsum(self.quotes[known], dtype=np.int64) % 2 == 1
        found: npt.NDArray[np.bool_] = (
            (depth > 0) | quoted | np.logical_or.accumulate(self.unreadable[known])
        )
        return found
