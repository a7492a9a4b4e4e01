"""Facts inserted into a document, for the transforms that restate them."""

from __future__ import annotations

from collections.abc import Sequence

from sembench.errors import TransformError
from sembench.facts import Fact, make_facts
from sembench.profiles.base import SourceRecord
from sembench.texts import join_sentences, sentences
from sembench.transforms.base import Toolbox

FACTS = 2
_SMALLEST_DOCUMENT_WORDS = 60
"""In a shorter document the facts would be most of the text."""


def facts_for(record: SourceRecord, tools: Toolbox) -> list[Fact]:
    """Facts whose values the document does not already contain.

    Raises
    ------
    TransformError
        If the document is too short to hide them in.
    """
    words = len(record.context.split())
    if words < _SMALLEST_DOCUMENT_WORDS:
        raise TransformError(
            f"the document has {words} words, {_SMALLEST_DOCUMENT_WORDS} are needed around facts"
        )
    while True:
        facts = make_facts(tools.random, FACTS)
        if not any(fact.value in record.context for fact in facts):
            return facts


def insert(context: str, statements: Sequence[str]) -> str:
    """Insert the statements between the document's sentences, spread evenly."""
    parts = sentences(context)
    for number in reversed(range(len(statements))):
        place = (2 * number + 1) * len(parts) // (2 * len(statements))
        sentence, gap = parts[place]
        # Insert before the gap, so that paragraphs stay paragraphs.
        parts[place] = (f"{sentence} {statements[number]}", gap)
    return join_sentences(parts)
