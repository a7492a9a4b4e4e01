"""What every profile yields: records in LongBench's format (document, question, answers)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecord:
    """A document with a question about it. `input` is empty if there is none."""

    dataset: str
    source_id: str
    context: str
    input: str = ""
    answers: tuple[str, ...] = ()
    source_index: int = 0
    """Position of the record within its dataset."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Metadata for the manifest's items: ``length``, ``length_band``, ``domain``, …"""


class Source(Protocol):
    """The records of one profile: the same records in the same order every time."""

    @property
    def profile(self) -> str:
        """The profile name stored in the manifest."""
        ...

    def records(self) -> Iterator[SourceRecord]:
        """Yield all records of the chosen datasets, in source order."""
        ...


def length_band(words: int) -> str:
    """``short``, ``medium`` or ``long``: below 1,000 words, below 4,000, the rest."""
    if words < 1000:
        return "short"
    return "medium" if words < 4000 else "long"
