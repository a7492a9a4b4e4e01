"""Where sentences and paragraphs end, told from token ids alone.

Built once from a tokenizer's vocabulary; policies that recompute up to a boundary
then need no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from semblend.core.tokens import TokenArray

Flags = npt.NDArray[np.bool_]

_STOPS = (".", "?", "!", "…", "。", "！", "？")
_CLOSERS = "\"'”’)]»"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Boundaries:
    """What each token id says about boundaries, shape [vocabulary] each."""

    stops: Flags
    """Its text ends a sentence, if what follows opens a new one."""
    opens: Flags
    """Its text begins with white space: "3.14" and "e.g.x" do not end a sentence."""
    breaks: Flags
    """Its text holds a line break: the end of a sentence by itself."""
    blanks: Flags
    """Its text holds an empty line: the end of a paragraph."""

    @classmethod
    def from_texts(cls, texts: Sequence[str]) -> Boundaries:
        """Read the texts of all token ids, in order of id."""

        def flags(says: Sequence[bool]) -> Flags:
            return np.asarray(says, dtype=np.bool_)

        return cls(
            stops=flags([text.rstrip().rstrip(_CLOSERS).endswith(_STOPS) for text in texts]),
            opens=flags([text[:1].isspace() for text in texts]),
            breaks=flags(["\n" in text for text in texts]),
            blanks=flags(["\n\n" in text for text in texts]),
        )

    def sentence_ends(self, tokens: TokenArray) -> Flags:
        """Whether each token is the last of a sentence, shape [tokens]."""
        known = self._known(tokens)
        opens = np.append(self.opens[known[1:]], True)
        ends: Flags = (self.stops[known] & opens) | self.breaks[known]
        return ends

    def paragraph_ends(self, tokens: TokenArray) -> Flags:
        """Whether each token is the last of a paragraph, shape [tokens]."""
        known = self._known(tokens)
        line = self.breaks[known]
        ends: Flags = self.blanks[known] | (line & np.append(False, line[:-1]))
        return ends

    def _known(self, tokens: TokenArray) -> TokenArray:
        """Ids beyond the vocabulary (added without text) say nothing: taken as the last one."""
        clipped: TokenArray = np.minimum(tokens, len(self.stops) - 1)
        return clipped
