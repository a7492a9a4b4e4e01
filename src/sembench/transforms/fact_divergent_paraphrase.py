"""fact_divergent_paraphrase: restated, but the donor's value is different.

The most dangerous case: the prompts look like paraphrases of each other, but the answers
differ. An engine that answers with the donor's value leaked it.
"""

from __future__ import annotations

from dataclasses import replace

from sembench.facts import make_value
from sembench.model import ManifestItem
from sembench.profiles.base import SourceRecord
from sembench.transforms.base import Donor, Reuse, Toolbox, Transform
from sembench.transforms.fact_items import facts_for, insert
from sembench.transforms.prompts import base_prompt


class FactDivergentParaphrase(Transform):
    """Donor and recipient state a fact in different words and with different values."""

    name = "fact_divergent_paraphrase"
    summary = (
        "Donor and recipient restate the same facts, but the probed fact has another value in "
        "the donor; that value must not appear in the answer."
    )
    reuse = Reuse.SEMANTIC
    enterprise_shape = "adversarial_edit"

    def apply(self, record: SourceRecord, tools: Toolbox) -> ManifestItem:
        """Like fact_paraphrase, with one value changed in the donor."""
        facts = facts_for(record, tools)
        probe = tools.random.choice(facts)
        other = _other_value(probe.value, record.context, tools)
        told = [replace(fact, value=other) if fact is probe else fact for fact in facts]
        donor = insert(record.context, [fact.statement for fact in told])
        recipient = insert(record.context, [fact.restatement for fact in facts])
        return self.item(
            record,
            tools,
            donors=[Donor(text=base_prompt(donor, probe.question), label="fact_probe_donor")],
            recipient=base_prompt(recipient, probe.question),
            question=probe.question,
            answers=[probe.value],
            metadata={
                "hit_class": "adversarial",
                "fact_probe": probe.value,
                "divergent_donor_value": other,
                "fact_equivalent": False,
                "restated_parts": len(facts) - 1,
                "restated_total": len(facts),
                "expected_no_fact_leak": True,
                "expected_verifier_accept": False,
            },
        )

    def check_law(self, item: ManifestItem) -> None:
        """Each prompt contains its own value and not the other's."""
        value, other = item.metadata.get("fact_probe"), item.metadata.get("divergent_donor_value")
        self.require(
            isinstance(value, str) and isinstance(other, str),
            "metadata.fact_probe and metadata.divergent_donor_value are not texts",
        )
        donor = item.donor_prompts[0].text
        self.require(str(value) in item.recipient_prompt, "the recipient does not hold the fact")
        self.require(str(value) not in donor, "the donor holds the recipient's value")
        self.require(str(other) in donor, "the donor does not hold its own value")
        self.require(
            str(other) not in item.recipient_prompt, "the recipient holds the donor's value"
        )
        self.require(item.answers == (value,), "the answer is not the recipient's value")
        self.require(item.metadata.get("fact_equivalent") is False, "fact_equivalent is not false")
        self.require_reuse(item, at_least=0.3)


def _other_value(value: str, context: str, tools: Toolbox) -> str:
    while True:
        other = make_value(tools.random)
        if other != value and other not in context:
            return other
