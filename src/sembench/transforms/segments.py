"""Segments of a record, for the transforms that move them."""

from __future__ import annotations

from sembench.errors import TransformError
from sembench.profiles.base import SourceRecord
from sembench.texts import split_context, split_evenly, word_ids
from sembench.transforms.base import REUSABLE_RUN_WORDS, Toolbox

SEPARATOR = "\n\n"


def segments_of(record: SourceRecord, tools: Toolbox) -> list[str]:
    """At least two different segments, each long enough to be reused by itself.

    Raises
    ------
    TransformError
        If the document does not have them.
    """
    limits = {"max_segments": tools.max_segments, "min_chars": tools.min_segment_chars}
    segments = split_context(record.context, **limits)
    if _holds_answer(record, [record.context]) and not _holds_answer(record, segments):
        # A recipient whose answer was lost with a paragraph could only be judged on a guess.
        segments = split_evenly(record.context, **limits)
    if len(segments) < 2:
        raise TransformError(
            f"the document ({len(record.context)} characters) gives {len(segments)} segment of "
            f"{tools.min_segment_chars} characters, 2 are needed"
        )
    if len(set(segments)) != len(segments):
        raise TransformError("the document repeats a segment")
    if min(len(word_ids(segment)) for segment in segments) < 2 * REUSABLE_RUN_WORDS:
        raise TransformError(f"a segment has fewer than {2 * REUSABLE_RUN_WORDS} words")
    return segments


def _holds_answer(record: SourceRecord, texts: list[str]) -> bool:
    return any(answer in text for answer in record.answers for text in texts)
