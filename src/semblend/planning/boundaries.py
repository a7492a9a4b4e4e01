"""Finds the ends of sentences and paragraphs from token ids.

Built once from a tokenizer's vocabulary, so policies that recompute up to a boundary need no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from semblend.core.tokens import TokenArray
from semblend.planning.enclosures import Enclosures
from semblend.planning.sure_ends import MARKS, TURN, ends_block, is_sure_end

Flags = npt.NDArray[np.bool_]

_STOPS = (".", "?", "!", "…", "。", "！", "？")
_CLOSERS = "\"'”’)]»"
_TOKENS_BEFORE, _TOKENS_AFTER = 8, 4
"""Tokens read on each side of a possible end."""
_PARAGRAPH_TOKENS = 512
"""How far back an open bracket or quotation is looked for."""
_ROLE_TOKENS = 2
"""Tokens between a turn's token and its text, which name the speaker."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Boundaries:
    """What each token id says about boundaries, each of shape [vocabulary]."""

    stops: Flags
    """Its text ends a sentence, if what follows starts a new one."""
    opens: Flags
    """Its text starts with white space: "3.14" and "e.g.x" do not end a sentence."""
    breaks: Flags
    """Its text contains a line break, which ends a sentence by itself."""
    blanks: Flags
    """Its text contains an empty line, which ends a paragraph."""
    marks: Flags
    """Its text contains a mark that may end a sentence."""
    turns: Flags
    """It ends or starts a chat turn."""
    enclosures: Enclosures
    """What opens and closes brackets and quotations."""
    texts: tuple[str, ...]

    @classmethod
    def from_texts(cls, texts: Sequence[str]) -> Boundaries:
        """Build from the texts of all token ids, in order of id."""

        def flags(says: Sequence[bool]) -> Flags:
            return np.asarray(says, dtype=np.bool_)

        return cls(
            stops=flags([text.rstrip().rstrip(_CLOSERS).endswith(_STOPS) for text in texts]),
            opens=flags([text[:1].isspace() for text in texts]),
            breaks=flags(["\n" in text for text in texts]),
            blanks=flags(["\n\n" in text for text in texts]),
            marks=flags([any(mark in text for mark in MARKS) for text in texts]),
            turns=flags([bool(TURN.fullmatch(text)) for text in texts]),
            enclosures=Enclosures.from_texts(texts),
            texts=tuple(texts),
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

    def sure_ends(self, tokens: TokenArray, start: int, end: int, *, wanted: int) -> list[int]:
        """The first positions in [start, end) that follow a certain sentence end.

        At most `wanted`. A token that contains an end and more (". The") is uncertain. So is an end
        inside brackets or a quotation: the sentence around them may go on.
        """
        known = self._known(tokens)
        found: list[int] = []
        inside = self._inside(known, start, end)
        for at in self._marked(known, start, end):
            around = self._around(known, at)
            if not is_sure_end(*around):
                continue
            if inside is not None and inside[at - start]:
                if not ends_block(*around):
                    continue
                # Whatever was left open ends with its paragraph.
                inside[at + 1 - start :] = self.enclosures.inside(known[at + 1 : end])
            found.append(at + 1)
            if len(found) == wanted:
                break
        return found

    def opening(self, tokens: TokenArray, start: int, end: int) -> int | None:
        """Start of the last paragraph or turn that starts in [start, end), if any.

        Only certain starts count: after a turn's token, or after a full sentence and an empty line.
        The token that shows it is inside [start, end).
        """
        known = self._known(tokens)
        turns = (np.flatnonzero(self.turns[known[start:end]]) + start).tolist()
        marked = self._marked(known, start, end)
        blocks = [at for at in marked if ends_block(*self._around(known, at))]
        if not turns and not blocks:
            return None
        last = max(turns + blocks)
        # A turn's token is followed by the speaker, then by empty lines.
        at = last + 1
        words = _ROLE_TOKENS if last in turns else 0
        line = next((i for i in range(at, min(end, at + words + 1)) if self._is_line(known[i])), at)
        while line < end and self._is_line(known[line]):
            line += 1
        return line

    def starts_turn(self, tokens: TokenArray, at: int) -> bool:
        """Whether a turn's text, or the prompt, starts at a position that :meth:`opening` found."""
        before = self._known(tokens)[max(0, at - _ROLE_TOKENS - 2) : at]
        return at == 0 or bool(self.turns[before].any())

    def has_words(self, tokens: TokenArray, start: int, end: int) -> bool:
        """Whether [start, end) holds anything but punctuation and white space."""
        known = self._known(tokens)[start:end]
        return any(any(map(str.isalnum, self.texts[token])) for token in known.tolist())

    def begins(self, tokens: TokenArray, at: int) -> bool:
        """Whether a paragraph or turn certainly starts at a position."""
        return at == 0 or self.opening(tokens, max(0, at - _TOKENS_BEFORE), at) == at

    def has_blank_line(self, tokens: TokenArray, start: int, end: int) -> bool:
        """Whether there is an empty line in [start, end) or at its end."""
        return bool(self.paragraph_ends(tokens[start:end]).any())

    def _inside(self, known: TokenArray, start: int, end: int) -> Flags | None:
        """Whether each token of [start, end) may be enclosed; None if nothing there encloses."""
        first = max(0, start - _PARAGRAPH_TOKENS)
        if not self.enclosures.any_in(known[first:end]):
            return None
        before = known[first:start]
        ends = np.flatnonzero(self.paragraph_ends(before) | self.turns[before])
        if len(ends):
            first += int(ends[-1]) + 1
        return self.enclosures.inside(known[first:end])[start - first :]

    def _is_line(self, token: int) -> bool:
        return bool(self.breaks[token]) and not self.texts[token].strip()

    def _marked(self, known: TokenArray, start: int, end: int) -> list[int]:
        found: list[int] = (np.flatnonzero(self.marks[known[start:end]]) + start).tolist()
        return found

    def _around(self, known: TokenArray, at: int) -> tuple[str, str]:
        """The text up to the end of a token, and the text after it."""
        before = known[max(0, at - _TOKENS_BEFORE) : at + 1]
        after = known[at + 1 : at + 1 + _TOKENS_AFTER]
        return "".join(self.texts[t] for t in before), "".join(self.texts[t] for t in after)

    def _known(self, tokens: TokenArray) -> TokenArray:
        """Map ids beyond the vocabulary (added without text) to the last id."""
        clipped: TokenArray = np.minimum(tokens, len(self.stops) - 1)
        return clipped
