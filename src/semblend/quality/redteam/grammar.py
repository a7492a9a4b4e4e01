"""What the red team varies: one gene for each way text can hide a change from a policy.

A gene's values go from plain to odd. Shrinking returns to the first. Regressions are written anew
from their genes and a seed, so values are added, never changed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

GENES: Mapping[str, tuple[str, ...]] = {
    "form": (
        "lives",
        "works",
        "born",
        "moved",
        "code",
        "quotation",
        "footnote",
        "bullet",
        "numbered",
        "key_value",
        "source_code",
        "json",
        "table",
        "columns",
        "heading",
        "field",
        "unit",
        "pronoun",
        "pronoun_line",
        "pronoun_paragraph",
        "question",
        "opening",
        "told",
        "footnote_mark",
        "list_heading",
        "nested_keys",
        "function",
        "unit_heading",
        "description",
        "third_sentence",
        "first_person",
        "speaker",
        "letter",
        "signed",
    ),
    "gap": ("0", "2", "4", "6", "8", "12", "16", "24", "32", "48", "96", "160"),
    "filler": (
        "plain",
        "abbreviation",
        "foreign",
        "numbers",
        "stops",
        "wrapped",
        "clauses",
        "quoted",
        "scripts",
        "initials",
        "addresses",
        "long_abbreviation",
    ),
    "place": ("middle", "first", "lead", "paragraph", "last", "pair", "line"),
    "change": ("exchanged", "rotated", "attribute"),
    "instruction": ("same", "other", "longer"),
    "also": (
        "nothing",
        "edit_before",
        "edit_behind",
        "insertion",
        "deletion",
        "order",
        "lead_cut",
        "conflicting",
        "versions",
        "gap_edit",
        "word_before",
        "other_facts",
        "facts_by_turns",
    ),
    "names": (
        "invented",
        "people",
        "accents",
        "capitals",
        "hyphens",
        "same_first",
        "same_last",
        "same_start",
        "scripts",
        "digits",
    ),
    "spacing": ("plain", "double", "tabs", "no_break", "returns", "indented"),
    "sibling": ("behind", "before", "paragraphs"),
    "length": ("short", "medium", "long"),
    "between": ("0", "1", "2", "3", "5"),
}
"""Gene to values. `gap` counts words between the changed word and the fact asked for; `between`
counts whole sentences, in forms that say who it is about in one sentence and the fact in another.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """One value for every gene."""

    form: str = "lives"
    gap: str = "0"
    filler: str = "plain"
    place: str = "middle"
    change: str = "exchanged"
    instruction: str = "same"
    also: str = "nothing"
    names: str = "invented"
    spacing: str = "plain"
    sibling: str = "behind"
    length: str = "short"
    between: str = "0"

    def with_gene(self, gene: str, value: str) -> Structure:
        """Replace the value of one gene."""
        return replace(self, **{gene: value})

    def to_dict(self) -> dict[str, str]:
        return asdict(self)

    @property
    def signature(self) -> str:
        """The genes that are not plain."""
        plain = Structure()
        odd = [
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(plain, field.name)
        ]
        return ", ".join(odd) or "plain"


def random_structure(rng: random.Random) -> Structure:
    """Draw every gene at random."""
    return Structure(**{gene: rng.choice(values) for gene, values in GENES.items()})
