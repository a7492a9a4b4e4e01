"""rag_reorder: a retriever returns the same chunks in another order."""

from __future__ import annotations

from sembench.model import ManifestItem
from sembench.profiles.base import SourceRecord
from sembench.transforms.base import Donor, Reuse, Toolbox, Transform
from sembench.transforms.prompts import base_prompt, question_of
from sembench.transforms.segments import SEPARATOR, segments_of


class RagReorder(Transform):
    """The same segments, none in its old position."""

    name = "rag_reorder"
    summary = "Recipient and donor hold the same segments; no segment keeps its place."
    reuse = Reuse.SEMANTIC
    enterprise_shape = "rag_reorder"

    def apply(self, record: SourceRecord, tools: Toolbox) -> ManifestItem:
        """Segments in document order for the donor, deranged for the recipient."""
        segments = segments_of(record, tools)
        order = _derangement(len(segments), tools)
        question = question_of(record)
        return self.item(
            record,
            tools,
            donors=[Donor(text=base_prompt(SEPARATOR.join(segments), question))],
            recipient=base_prompt(SEPARATOR.join(segments[place] for place in order), question),
            metadata={
                "hit_class": "semantic",
                "segment_count": len(segments),
                "segment_chars": [len(segment) for segment in segments],
                "segment_order": order,
            },
        )

    def check_law(self, item: ManifestItem) -> None:
        """Undoing the recorded order gives the donor back, and the order moves every segment."""
        order = item.metadata.get("segment_order")
        lengths = item.metadata.get("segment_chars")
        if not isinstance(order, list) or not isinstance(lengths, list):
            # Another tool's manifest records no order, so check what can be seen.
            self.require_reuse(item, at_least=0.3)
            return
        self.require(
            all(place != target for target, place in enumerate(order)), "a segment keeps its place"
        )
        donor = item.donor_prompts[0].text
        segments, cursor = [], donor.index("Document:\n") + len("Document:\n")
        for length in lengths:
            segments.append(donor[cursor : cursor + length])
            cursor += length + len(SEPARATOR)
        rebuilt = donor.replace(
            SEPARATOR.join(segments), SEPARATOR.join(segments[place] for place in order), 1
        )
        self.require(rebuilt == item.recipient_prompt, "more than the order of segments differs")
        self.require_reuse(item, at_least=0.3)


def _derangement(count: int, tools: Toolbox) -> list[int]:
    """A permutation of 0 … count-1 with no fixed point."""
    while True:
        order = list(range(count))
        tools.random.shuffle(order)
        if all(place != target for target, place in enumerate(order)):
            return order
