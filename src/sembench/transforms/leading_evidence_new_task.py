"""leading_evidence_new_task: reuse an engine can load without segments.

The reusable run starts at the recipient's first token, so engines that can only load
prefix-shaped K/V can materialize it. In the donor it follows an instruction, so exact
caches cannot.
"""

from __future__ import annotations

from sembench.model import ManifestItem
from sembench.profiles.base import SourceRecord
from sembench.runs import run_length
from sembench.texts import word_ids
from sembench.transforms.base import Donor, Reuse, Shape, Toolbox, Transform
from sembench.transforms.prompts import (
    OTHER_TASKS,
    base_prompt,
    evidence_first_prompt,
    question_of,
)


class LeadingEvidenceNewTask(Transform):
    """The document comes first, then a new task."""

    name = "leading_evidence_new_task"
    summary = (
        "The recipient begins with a document that the donor has after an instruction, "
        "and continues with another task."
    )
    reuse = Reuse.SEMANTIC
    shape = Shape.PREFIX
    enterprise_shape = "leading_evidence"

    def apply(self, record: SourceRecord, tools: Toolbox) -> ManifestItem:
        """The donor is the base layout with another task."""
        other = tools.random.choice(OTHER_TASKS)
        return self.item(
            record,
            tools,
            donors=[Donor(text=base_prompt(record.context, other), label="leading_evidence_donor")],
            recipient=evidence_first_prompt(record.context, question_of(record)),
            metadata={"hit_class": "semantic"},
        )

    def check_law(self, item: ManifestItem) -> None:
        """At least the recipient's first half is one run inside the donor, not at its start."""
        recipient, donor = word_ids(item.recipient_prompt), word_ids(item.donor_prompts[0].text)
        starts = [int(s) for s in (donor == recipient[:1]).nonzero()[0]]
        longest, start = max(
            ((run_length(recipient, donor, 0, start), start) for start in starts), default=(0, 0)
        )
        self.require(start > 0, "the donor begins with the document too")
        self.require(
            longest >= len(recipient) // 3, f"only {longest} leading words are the donor's"
        )
        self.require_reuse(item, at_least=0.3)
