"""instruction_variant: another client, the same document, the same question."""

from __future__ import annotations

from sembench.model import ManifestItem
from sembench.profiles.base import SourceRecord
from sembench.transforms.base import Donor, Reuse, Toolbox, Transform
from sembench.transforms.prompts import INSTRUCTION_VARIANTS, base_prompt, question_of


class InstructionVariant(Transform):
    """Only the leading instruction changes."""

    name = "instruction_variant"
    summary = "Recipient and donor are the same document and question under other instructions."
    reuse = Reuse.SEMANTIC
    enterprise_shape = "instruction_change"

    def apply(self, record: SourceRecord, tools: Toolbox) -> ManifestItem:
        """The base prompt as donor, an instruction variant for the recipient."""
        question = question_of(record)
        instruction = tools.random.choice(INSTRUCTION_VARIANTS)
        return self.item(
            record,
            tools,
            donors=[Donor(text=base_prompt(record.context, question))],
            recipient=base_prompt(record.context, question, instruction=instruction),
            metadata={"hit_class": "semantic"},
        )

    def check_law(self, item: ManifestItem) -> None:
        """Equal from the first blank line on, different before it."""
        _, _, donor_rest = item.donor_prompts[0].text.partition("\n\n")
        _, _, recipient_rest = item.recipient_prompt.partition("\n\n")
        self.require(donor_rest == recipient_rest, "more than the instruction differs")
        self.require_reuse(item, at_least=0.3)
