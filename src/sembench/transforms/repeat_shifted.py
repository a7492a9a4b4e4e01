"""repeat_shifted: what a prefix cache loses to one line in front."""

from __future__ import annotations

from sembench.model import ManifestItem
from sembench.profiles.base import SourceRecord
from sembench.texts import word_ids
from sembench.transforms.base import Donor, Reuse, Toolbox, Transform
from sembench.transforms.prompts import PREAMBLE, base_prompt, question_of


class RepeatShifted(Transform):
    """The same request after a preamble."""

    name = "repeat_shifted"
    summary = "The recipient is a short preamble followed by the whole donor."
    reuse = Reuse.SEMANTIC
    enterprise_shape = "forwarded_request"

    def apply(self, record: SourceRecord, tools: Toolbox) -> ManifestItem:
        """The base prompt as donor; the recipient has one more line in front."""
        prompt = base_prompt(record.context, question_of(record))
        preamble = PREAMBLE.format(number=tools.random.randrange(10_000, 100_000))
        return self.item(
            record,
            tools,
            donors=[Donor(text=prompt)],
            recipient=f"{preamble}\n\n{prompt}",
            metadata={"hit_class": "semantic"},
        )

    def check_law(self, item: ManifestItem) -> None:
        """The donor is a suffix, and no power-of-two block size divides the shift."""
        donor = item.donor_prompts[0].text
        self.require(item.recipient_prompt.endswith(donor), "the donor is not the recipient's end")
        shift = len(word_ids(item.recipient_prompt.removesuffix(donor)))
        self.require(shift % 2 == 1, f"a shift of {shift} words keeps blocks aligned")
        self.require_reuse(item, at_least=0.5)
