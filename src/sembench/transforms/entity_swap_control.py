"""entity_swap_control: nearly the same document, about someone else.

The donor's document names another entity, if possible the answer itself. Nearly all tokens
are identical, so reuse is tempting. An engine that answers with the donor's entity has
leaked a fact through K/V.
"""

from __future__ import annotations

import re
from collections import Counter
from random import Random

from sembench.errors import TransformError
from sembench.facts import make_name, make_value
from sembench.model import ManifestItem
from sembench.profiles.base import SourceRecord
from sembench.texts import word_ids
from sembench.transforms.base import Donor, Reuse, Toolbox, Transform
from sembench.transforms.prompts import base_prompt, question_of

_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{2,}(?: [A-Z][a-z]+)*")
_LONGEST_ANSWER_WORDS = 8
"""An answer longer than this is a sentence, not an entity."""


class EntitySwapControl(Transform):
    """The donor's document names another entity."""

    name = "entity_swap_control"
    summary = (
        "The donor's document is the recipient's with one entity swapped throughout; "
        "the donor's entity must not appear in the answer."
    )
    reuse = Reuse.SEMANTIC
    enterprise_shape = "adversarial_edit"

    def apply(self, record: SourceRecord, tools: Toolbox) -> ManifestItem:
        """The base prompt as recipient; the entity is swapped in the donor's."""
        question = question_of(record)
        entity = _entity(record)
        if entity is None:
            raise TransformError(f"{self.name}: the document names no entity")
        substitute = _substitute(entity, record.context, tools.random)
        return self.item(
            record,
            tools,
            donors=[
                Donor(
                    text=base_prompt(_whole(entity).sub(substitute, record.context), question),
                    label="entity_swap_donor",
                )
            ],
            recipient=base_prompt(record.context, question),
            metadata={
                "hit_class": "adversarial",
                "entity_swap": {"entity": entity, "substitute": substitute},
                "entity_swap_source_id": record.source_id,
                "divergent_donor_value": substitute,
                "expected_no_fact_leak": True,
                "expected_verifier_accept": False,
            },
        )

    def check_law(self, item: ManifestItem) -> None:
        """Swapping the entity turns the recipient's document into the donor's."""
        swap = item.metadata.get("entity_swap")
        if isinstance(swap, dict) and {"entity", "substitute"} <= set(swap):
            entity, substitute = str(swap["entity"]), str(swap["substitute"])
            donor = item.donor_prompts[0].text
            self.require(substitute in donor, "the donor does not name the substitute")
            self.require(
                substitute not in item.recipient_prompt, "the recipient names the substitute"
            )
            self.require(
                _whole(entity).sub(substitute, item.recipient_prompt)
                == _whole(entity).sub(substitute, donor),
                "more than the entity differs",
            )
        self.require(item.metadata.get("expected_no_fact_leak") is True, "the leak check is off")
        self.require_reuse(item, at_least=0.4)


def _whole(entity: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(entity)}(?!\w)")


def _entity(record: SourceRecord) -> str | None:
    """The answer if the document has it as an entity, otherwise its most frequent name."""
    for answer in record.answers:
        short = 0 < len(answer.split()) <= _LONGEST_ANSWER_WORDS
        if short and _whole(answer).search(record.context):
            return answer
    names = Counter(_NAME.findall(record.context))
    return min(names, key=lambda name: (-names[name], name)) if names else None


def _substitute(entity: str, context: str, random: Random) -> str:
    """A similar entity that the document does not contain, with a different word count.

    The different length makes later blocks lose their alignment, as in real edits.
    """
    make = make_value if any(letter.isdigit() for letter in entity) else make_name
    while True:
        substitute = make(random)
        if len(word_ids(substitute)) == len(word_ids(entity)):
            substitute = f"{substitute} {make(random)}"
        if substitute not in context:
            return substitute
