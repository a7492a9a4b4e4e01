"""sparse_edit: a few scattered words change."""

from __future__ import annotations

import re
from random import Random

from sembench.model import ManifestItem
from sembench.profiles.base import SourceRecord
from sembench.texts import word_ids
from sembench.transforms.base import Donor, Reuse, Toolbox, Transform
from sembench.transforms.prompts import base_prompt, question_of

_INSERTED = ("also", "reportedly", "indeed", "largely", "then", "partly", "again")
_WORD = re.compile(r"(?<= )[a-z]{3,}(?= )")
_STRIDE_WORDS = 150
"""About one edit in this many words; in a short document, one in the middle."""


class SparseEdit(Transform):
    """Single words are inserted or replaced, far apart."""

    name = "sparse_edit"
    summary = "Single words of the recipient's document were added or replaced, at most 2 in 100."
    reuse = Reuse.SEMANTIC
    enterprise_shape = "document_revision"

    def apply(self, record: SourceRecord, tools: Toolbox) -> ManifestItem:
        """The base prompt as donor; the recipient's document is edited."""
        question = question_of(record)
        edited, edits = _edit(record.context, tools.random)
        self.require(edits > 0, "the document has no plain word to edit")
        return self.item(
            record,
            tools,
            donors=[Donor(text=base_prompt(record.context, question))],
            recipient=base_prompt(edited, question),
            metadata={"hit_class": "semantic", "edits": edits},
        )

    def check_law(self, item: ManifestItem) -> None:
        """Only a few words in a hundred are new, and nearly everything survives in runs."""
        recipient, donor = word_ids(item.recipient_prompt), word_ids(item.donor_prompts[0].text)
        growth = len(recipient) - len(donor)
        self.require(
            0 < growth <= max(1, len(donor) // 50), f"the recipient has {growth} words more"
        )
        self.require_reuse(item, at_least=0.6)


def _edit(text: str, random: Random) -> tuple[str, int]:
    places = list(_WORD.finditer(text))
    if not places:
        return text, 0
    edits = max(1, len(places) // _STRIDE_WORDS)
    pieces: list[str] = []
    cursor = 0
    for number in range(edits):
        place = places[(2 * number + 1) * len(places) // (2 * edits)]
        pieces.append(text[cursor : place.start()])
        word = random.choice([word for word in _INSERTED if word != place.group()])
        # The first edit is always an insertion, because a replacement alone shifts nothing.
        inserts = number == 0 or random.random() < 0.7
        pieces.append(f"{word} {place.group()}" if inserts else word)
        cursor = place.end()
    return "".join([*pieces, text[cursor:]]), edits
