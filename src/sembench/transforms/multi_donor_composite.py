"""multi_donor_composite: one prompt assembled from what several requests have read."""

from __future__ import annotations

from sembench.model import ManifestItem
from sembench.profiles.base import SourceRecord
from sembench.runs import covered_share
from sembench.texts import word_ids
from sembench.transforms.base import (
    REUSABLE_RUN_WORDS,
    Donor,
    Reuse,
    Toolbox,
    Transform,
    reusable_share,
)
from sembench.transforms.prompts import OTHER_TASKS, base_prompt, question_of, task_first_prompt
from sembench.transforms.segments import SEPARATOR, segments_of


class MultiDonorComposite(Transform):
    """Each segment has its own donor."""

    name = "multi_donor_composite"
    summary = "Each segment of the recipient comes from a different donor; no donor has them all."
    reuse = Reuse.SEMANTIC
    enterprise_shape = "multi_document"

    def apply(self, record: SourceRecord, tools: Toolbox) -> ManifestItem:
        """One donor per segment, each with its own task; all segments in the recipient."""
        segments = segments_of(record, tools)
        donors = [
            Donor(
                text=task_first_prompt(segment, OTHER_TASKS[index % len(OTHER_TASKS)]),
                label="segment_donor",
                metadata={"segment_index": index},
            )
            for index, segment in enumerate(segments)
        ]
        return self.item(
            record,
            tools,
            donors=donors,
            recipient=base_prompt(SEPARATOR.join(segments), question_of(record)),
            metadata={"hit_class": "semantic", "segment_count": len(segments)},
        )

    def check_law(self, item: ManifestItem) -> None:
        """Every donor adds something the best single donor lacks."""
        self.require(len(item.donor_prompts) >= 2, "it has only one donor")
        self.require_reuse(item, at_least=0.3)
        recipient = word_ids(item.recipient_prompt)
        best = max(
            covered_share(recipient, [word_ids(donor.text)], REUSABLE_RUN_WORDS)
            for donor in item.donor_prompts
        )
        self.require(best < reusable_share(item), "one donor covers all that several do")
