"""The transform interface: it shapes a record into an item and can prove that it did.

`apply` makes the item. `check` looks at the item alone, without its record, and raises
unless the item matches the transform's summary. A build runs both; ``audit-manifest`` runs
`check` on any manifest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any, ClassVar

from sembench.errors import TransformError
from sembench.ids import donor_id, item_id, segment_donor_id
from sembench.model import DonorPrompt, ManifestItem
from sembench.profiles.base import SourceRecord
from sembench.runs import covered_share
from sembench.texts import word_ids

REUSABLE_RUN_WORDS = 16
"""No check counts shorter runs of words as reusable."""
UNRELATED_RUN_WORDS = 8
"""Texts that share a run of words this long count as related."""


class Reuse(StrEnum):
    """What is reusable in a transform's items."""

    EXACT = "exact"
    """An exact block cache covers all of it, so no planner can add anything."""
    SEMANTIC = "semantic"
    """Identical runs that an exact block cache misses, so lift must be above 0."""
    NONE = "none"
    """Nothing: any claimed reuse is false."""


class Shape(StrEnum):
    """What an engine must do to reuse it (the kinds of a SemanticKvPlan)."""

    EXACT_PREFIX = "exact_prefix"
    PREFIX = "request_local_prefix"
    SEGMENTED = "request_local_segmented"
    NONE = "discovery_only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolbox:
    """What a transform may use besides the record. `random` depends only on seed and item."""

    random: Random
    max_segments: int = 4
    min_segment_chars: int = 400
    companions: Sequence[SourceRecord] = ()
    """Other records of the source, for transforms that need an unrelated document."""
    profile: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Donor:
    """A donor prompt without its id."""

    text: str
    label: str = "base_prompt"
    metadata: Mapping[str, Any] | None = None


class Transform(ABC):
    """Shapes records into items of one kind; stateless."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """What `check` checks, in one sentence."""
    reuse: ClassVar[Reuse]
    shape: ClassVar[Shape] = Shape.SEGMENTED
    enterprise_shape: ClassVar[str]
    """The kind of traffic it represents."""

    @abstractmethod
    def apply(self, record: SourceRecord, tools: Toolbox) -> ManifestItem:
        """Turn the record into an item of this kind.

        Raises
        ------
        TransformError
            If the record cannot take this shape; the message says why.
        """

    def check(self, item: ManifestItem) -> None:
        """Raise TransformError unless the item matches the summary."""
        self.require(bool(item.donor_prompts), "it has no donor")
        self.require(
            item.negative_control == (self.reuse is Reuse.NONE),
            f"negative_control is {item.negative_control}",
        )
        self.check_law(item)

    @abstractmethod
    def check_law(self, item: ManifestItem) -> None:
        """The part of `check` that is specific to this transform."""

    def require(self, holds: bool, problem: str) -> None:
        """Raise TransformError naming the transform and the problem unless `holds`."""
        if not holds:
            raise TransformError(f"{self.name}: {problem}")

    def item(
        self,
        record: SourceRecord,
        tools: Toolbox,
        *,
        donors: Sequence[Donor],
        recipient: str,
        question: str | None = None,
        answers: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> ManifestItem:
        """Assemble an item: ids, labels and the metadata every item carries."""
        identity = item_id(record.dataset, record.source_id, self.name)
        ids = (
            [donor_id(identity)]
            if len(donors) == 1
            else [segment_donor_id(identity, index) for index in range(len(donors))]
        )
        return ManifestItem(
            item_id=identity,
            dataset=record.dataset,
            source_id=record.source_id,
            transform=self.name,
            donor_prompts=tuple(
                DonorPrompt(
                    donor_id=one_id,
                    text=donor.text,
                    label=donor.label,
                    metadata=dict(donor.metadata or {}),
                )
                for one_id, donor in zip(ids, donors, strict=True)
            ),
            recipient_prompt=recipient,
            input=record.input if question is None else question,
            answers=tuple(record.answers if answers is None else answers),
            negative_control=self.reuse is Reuse.NONE,
            metadata={
                **record.metadata,
                "profile": tools.profile,
                "source_index": record.source_index,
                "expected_exact": self.reuse is Reuse.EXACT,
                "expected_semantic": self.reuse is Reuse.SEMANTIC,
                "enterprise_shape": self.enterprise_shape,
                "materialization_shape": self.shape.value,
                **(metadata or {}),
            },
        )

    def require_reuse(self, item: ManifestItem, *, at_least: float) -> None:
        """Raise unless a share of the recipient is in identical runs, but not all of it.

        If all of it were, the item would repeat its donor under another name.
        """
        share = reusable_share(item)
        self.require(
            share >= at_least,
            f"{share:.0%} of the recipient is in identical runs of {REUSABLE_RUN_WORDS} words "
            f"or more, at least {at_least:.0%} expected",
        )
        self.require(
            all(item.recipient_prompt != donor.text for donor in item.donor_prompts),
            "the recipient is a donor, word for word",
        )


def reusable_share(item: ManifestItem, *, run_words: int = REUSABLE_RUN_WORDS) -> float:
    """Share of the recipient's words in runs of `run_words` or more identical in one donor."""
    donors = [word_ids(donor.text) for donor in item.donor_prompts]
    return covered_share(word_ids(item.recipient_prompt), donors, run_words)
