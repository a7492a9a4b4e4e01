"""exact_repeat: the ceiling of exact caches."""

from __future__ import annotations

from sembench.model import ManifestItem
from sembench.profiles.base import SourceRecord
from sembench.transforms.base import Donor, Reuse, Shape, Toolbox, Transform
from sembench.transforms.prompts import base_prompt, question_of


class ExactRepeat(Transform):
    """The same request twice."""

    name = "exact_repeat"
    summary = "The recipient is the donor, character for character."
    reuse = Reuse.EXACT
    shape = Shape.EXACT_PREFIX
    enterprise_shape = "repeated_request"

    def apply(self, record: SourceRecord, tools: Toolbox) -> ManifestItem:
        """The base prompt as donor and as recipient."""
        prompt = base_prompt(record.context, question_of(record))
        return self.item(
            record,
            tools,
            donors=[Donor(text=prompt)],
            recipient=prompt,
            metadata={"hit_class": "exact"},
        )

    def check_law(self, item: ManifestItem) -> None:
        self.require(
            item.donor_prompts[0].text == item.recipient_prompt, "recipient and donor differ"
        )
