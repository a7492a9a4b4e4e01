"""Segments of a record, for the transforms that move them."""

from __future__ import annotations

from sembench.errors import TransformError
from sembench.profiles.base import SourceRecord
from sembench.texts import split_context, word_ids
from sembench.transforms.base import REUSABLE_RUN_WORDS, Toolbox

SEPARATOR = "\n\n"


def segments_of(record: SourceRecord, tools: Toolbox) -> list[str]:
    """Two segments or more, each long enough to be reused by itself and all different.

    Raises
    ------
    TransformError
        If the document does not give that.
    """
    segments = split_context(
        record.context, max_segments=tools.max_segments, min_chars=tools.min_segment_chars
    )
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
