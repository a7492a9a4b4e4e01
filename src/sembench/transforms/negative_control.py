"""negative_control: donors that have nothing to offer.

Not only are the documents unrelated; instruction, labels and task differ too, so not even
the template is shared. Any reuse claimed here is false, and a recipient that is faster
here was served from somewhere it should not have been.
"""

from __future__ import annotations

from sembench.errors import TransformError
from sembench.model import ManifestItem
from sembench.profiles.base import SourceRecord
from sembench.runs import covered_share
from sembench.texts import word_ids
from sembench.transforms.base import (
    UNRELATED_RUN_WORDS,
    Donor,
    Reuse,
    Shape,
    Toolbox,
    Transform,
    reusable_share,
)
from sembench.transforms.prompts import (
    INSTRUCTION_VARIANTS,
    OTHER_TASKS,
    base_prompt,
    question_of,
    unrelated_prompt,
)

_TRIES = 12


class NegativeControl(Transform):
    """The donor is an unrelated document under an unrelated template."""

    name = "negative_control"
    summary = f"Donor and recipient share no run of {UNRELATED_RUN_WORDS} words, template included."
    reuse = Reuse.NONE
    shape = Shape.NONE
    enterprise_shape = "unrelated"

    def apply(self, record: SourceRecord, tools: Toolbox) -> ManifestItem:
        """The base prompt as recipient; the donor is the first companion that shares nothing."""
        recipient = base_prompt(record.context, question_of(record))
        ids = word_ids(recipient)
        others = [other for other in tools.companions if other.context != record.context]
        # Try another dataset first: the further apart, the less a coincidence of topic matters.
        others.sort(key=lambda other: other.dataset == record.dataset)
        for other in others[:_TRIES]:
            text = unrelated_prompt(
                other.context,
                tools.random.choice(OTHER_TASKS),
                instruction=tools.random.choice(INSTRUCTION_VARIANTS),
            )
            if covered_share(ids, [word_ids(text)], UNRELATED_RUN_WORDS) == 0.0:
                return self.item(
                    record,
                    tools,
                    donors=[Donor(text=text, label="unrelated_base_prompt")],
                    recipient=recipient,
                    metadata={
                        "hit_class": "none",
                        "negative_source_id": other.source_id,
                        "expected_no_fact_leak": True,
                    },
                )
        raise TransformError(
            f"{self.name}: no unrelated document among {len(others[:_TRIES])} companions"
        )

    def check_law(self, item: ManifestItem) -> None:
        """No shared run, however the words are split into blocks."""
        share = reusable_share(item, run_words=UNRELATED_RUN_WORDS)
        self.require(
            share == 0.0,
            f"{share:.1%} of the recipient is in runs of {UNRELATED_RUN_WORDS} words or more "
            f"that a donor holds too",
        )
