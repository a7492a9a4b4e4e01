"""Streaming text from tokens: whole characters only, and never the start of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_REPLACEMENT = "�"


class StreamDecoder:
    """Turns a growing sequence of token ids into text that never has to be retracted.

    A token may end inside a character, and its text may depend on its neighbours. So text is
    emitted only as far as decoding from a little further back agrees with decoding now, and held
    while it ends in an incomplete character.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._context = 0
        self._shown = 0

    def push(self, token_id: int) -> str:
        """Add a token and return the text that is new and final."""
        self._ids.append(token_id)
        if self._tokenizer is None:
            return ""
        text = self._new_text()
        if text.endswith(_REPLACEMENT):
            return ""
        self._context, self._shown = self._shown, len(self._ids)
        return text

    def flush(self) -> str:
        """The remaining text at the end, including an incomplete character."""
        if self._tokenizer is None or self._shown == len(self._ids):
            return ""
        text = self._new_text()
        self._shown = len(self._ids)
        return text

    def _new_text(self) -> str:
        before = self._decode(self._ids[self._context : self._shown])
        return self._decode(self._ids[self._context :])[len(before) :]

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)  # type: ignore[no-any-return]


class StopStrings:
    """Holds back text that may be the start of a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Add text. Returns what may be shown, and whether a stop string was completed.

        Text from the stop string on is dropped.
        """
        self._held += text
        ends = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if ends:
            shown, self._held = self._held[: min(ends)], ""
            return shown, True
        keep = max((self._overlap(stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown, False

    def flush(self) -> str:
        """The held text, at the end of generation."""
        shown, self._held = self._held, ""
        return shown

    def _overlap(self, stop: str) -> int:
        """Length of the longest suffix of the held text that is a prefix of `stop`."""
        for length in range(min(len(stop) - 1, len(self._held)), 0, -1):
            if self._held.endswith(stop[:length]):
                return length
        return 0
