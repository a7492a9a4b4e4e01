"""same_evidence_new_task: a document is read again for another purpose."""

from __future__ import annotations

from sembench.model import ManifestItem
from sembench.profiles.base import SourceRecord
from sembench.transforms.base import Donor, Reuse, Toolbox, Transform
from sembench.transforms.prompts import OTHER_TASKS, question_of, task_first_prompt

_HEAD = "\n\nDocument:\n"


class SameEvidenceNewTask(Transform):
    """The task in front of the document changes."""

    name = "same_evidence_new_task"
    summary = "Recipient and donor hold the same document after different tasks."
    reuse = Reuse.SEMANTIC
    enterprise_shape = "shared_evidence"

    def apply(self, record: SourceRecord, tools: Toolbox) -> ManifestItem:
        """The donor was given another task; the recipient asks the record's question."""
        other = tools.random.choice(OTHER_TASKS)
        return self.item(
            record,
            tools,
            donors=[Donor(text=task_first_prompt(record.context, other))],
            recipient=task_first_prompt(record.context, question_of(record)),
            metadata={"hit_class": "semantic"},
        )

    def check_law(self, item: ManifestItem) -> None:
        """Different tasks, then the same document."""
        donor_task, _, donor_rest = item.donor_prompts[0].text.partition(_HEAD)
        task, _, rest = item.recipient_prompt.partition(_HEAD)
        self.require(bool(rest) and donor_rest == rest, "the documents differ")
        self.require(donor_task != task, "the tasks are the same")
        self.require_reuse(item, at_least=0.3)
