"""question_paraphrase: another user asks the same thing about the same document."""

from __future__ import annotations

from sembench.model import ManifestItem
from sembench.profiles.base import SourceRecord
from sembench.texts import lower_first
from sembench.transforms.base import Donor, Reuse, Toolbox, Transform
from sembench.transforms.prompts import task_first_prompt

_WORDINGS = (
    "Could you tell me this: {question}",
    "Going by the document, {question}",
    "I am trying to find out {question}",
    "Please look it up for me - {question}",
)


class QuestionParaphrase(Transform):
    """The question in front of the document is reworded."""

    name = "question_paraphrase"
    summary = "Recipient and donor ask one question in two wordings, in front of one document."
    reuse = Reuse.SEMANTIC
    enterprise_shape = "repeated_question"

    def apply(self, record: SourceRecord, tools: Toolbox) -> ManifestItem:
        """The record's question for the donor, a wording of it for the recipient."""
        question = record.input.strip()
        self.require(bool(question), "the record has no question")
        wording = tools.random.choice(_WORDINGS)
        paraphrase = wording.format(question=lower_first(question))
        return self.item(
            record,
            tools,
            donors=[Donor(text=task_first_prompt(record.context, question))],
            recipient=task_first_prompt(record.context, paraphrase),
            question=paraphrase,
            metadata={"hit_class": "semantic", "original_question": question},
        )

    def check_law(self, item: ManifestItem) -> None:
        """The question keeps its words but not its wording; the rest is equal."""
        donor_head, _, donor_rest = item.donor_prompts[0].text.partition("\n\nDocument:\n")
        head, _, rest = item.recipient_prompt.partition("\n\nDocument:\n")
        self.require(donor_rest == rest, "the documents differ")
        self.require(donor_head != head, "the question is the same")
        lost = set(donor_head.lower().split()) - set(head.lower().split())
        self.require(not lost, f"the paraphrase loses {', '.join(sorted(lost))}")
        self.require_reuse(item, at_least=0.3)
