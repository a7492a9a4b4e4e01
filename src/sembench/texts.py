"""Small deterministic text operations that several transforms share."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sembench.blocks import TokenArray
from sembench.tokenizers.stable_regex import StableRegexTokenizer

_BLANK_LINES = re.compile(r"\n\s*\n")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")
_TOKENIZER = StableRegexTokenizer()


def word_ids(text: str) -> TokenArray:
    """Words and punctuation as ids, so that checks do not depend on a tokenizer."""
    return _TOKENIZER.encode(text)


def split_context(context: str, *, max_segments: int, min_chars: int) -> list[str]:
    """Cut a document into at most `max_segments` segments.

    If it has enough paragraphs of at least `min_chars`, the first of those are the
    segments; shorter ones are headings and list items that nobody retrieves. Otherwise
    it is cut evenly.
    """
    paragraphs = [part.strip() for part in _BLANK_LINES.split(context)]
    paragraphs = [part for part in paragraphs if len(part) >= min_chars]
    if len(paragraphs) >= max_segments:
        return paragraphs[:max_segments]
    return split_evenly(context, max_segments=max_segments, min_chars=min_chars)


def split_evenly(context: str, *, max_segments: int, min_chars: int) -> list[str]:
    """Cut a whole document into even pieces, at sentence ends where one is close."""
    target = max(min_chars, len(context) // max_segments)
    segments: list[str] = []
    cursor = 0
    while cursor < len(context):
        end = cursor + target
        cut = context.rfind(". ", cursor, end + 200)
        end = cut + 1 if cut > cursor + min_chars / 2 else end
        if len(segments) == max_segments - 1 or len(context) - end < min_chars / 2:
            end = len(context)
        segment = context[cursor:end].strip()
        if segment:
            segments.append(segment)
        cursor = end
    return segments


def sentences(text: str) -> list[tuple[str, str]]:
    """Split into (sentence, following whitespace); joined, they give the text back."""
    parts: list[tuple[str, str]] = []
    cursor = 0
    for gap in _SENTENCE_END.finditer(text):
        parts.append((text[cursor : gap.start()], gap.group()))
        cursor = gap.end()
    parts.append((text[cursor:], ""))
    return parts


def join_sentences(parts: Sequence[tuple[str, str]]) -> str:
    """The inverse of :func:`sentences`."""
    return "".join(sentence + gap for sentence, gap in parts)


def lower_first(text: str) -> str:
    """`text` with a lower-case first letter, unless its first word is a name or abbreviation."""
    first = text.split(" ", 1)[0]
    return text[:1].lower() + text[1:] if first[1:].islower() or len(first) == 1 else text
