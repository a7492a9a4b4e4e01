"""fact_paraphrase: the same facts, restated, in the same document."""

from __future__ import annotations

from sembench.model import ManifestItem
from sembench.profiles.base import SourceRecord
from sembench.transforms.base import Donor, Reuse, Toolbox, Transform
from sembench.transforms.fact_items import facts_for, insert
from sembench.transforms.prompts import base_prompt


class FactParaphrase(Transform):
    """Donor and recipient state the same facts in different words."""

    name = "fact_paraphrase"
    summary = "Donor and recipient state the same facts in two wordings within one document."
    reuse = Reuse.SEMANTIC
    enterprise_shape = "restated_fact"

    def apply(self, record: SourceRecord, tools: Toolbox) -> ManifestItem:
        """Insert facts as statements for the donor and as restatements for the recipient."""
        facts = facts_for(record, tools)
        probe = tools.random.choice(facts)
        donor = insert(record.context, [fact.statement for fact in facts])
        recipient = insert(record.context, [fact.restatement for fact in facts])
        return self.item(
            record,
            tools,
            donors=[Donor(text=base_prompt(donor, probe.question), label="fact_probe_donor")],
            recipient=base_prompt(recipient, probe.question),
            question=probe.question,
            answers=[probe.value],
            metadata={
                "hit_class": "semantic",
                "fact_probe": probe.value,
                "fact_equivalent": True,
                "restated_parts": len(facts),
                "restated_total": len(facts),
                "expected_verifier_accept": True,
            },
        )

    def check_law(self, item: ManifestItem) -> None:
        """Both contain the probed value, and it is the recipient's answer."""
        value = item.metadata.get("fact_probe")
        self.require(isinstance(value, str), "metadata.fact_probe is not a text")
        self.require(str(value) in item.recipient_prompt, "the recipient does not hold the fact")
        self.require(str(value) in item.donor_prompts[0].text, "the donor does not hold the fact")
        self.require(item.answers == (value,), "the answer is not the probed value")
        self.require(item.metadata.get("fact_equivalent") is True, "fact_equivalent is not true")
        self.require_reuse(item, at_least=0.3)
