"""Where the red team spends its items: on gene values that raised alarms before.

Each value of each gene is an arm with a Beta posterior of the alarms it raises. A structure is
drawn gene by gene (Thompson sampling). Some structures are random and some are mutations of finds,
so that no value is given up and finds are explored from all sides. Repeated finds say little that
is new, so alarms of the same form and filler count less each time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from semblend.quality.redteam.grammar import GENES, Structure, random_structure

BY_CHANCE = 0.2
BY_CHANGE = 0.3
PRIOR = (0.5, 4.0)
"""Few structures raise an alarm."""


class Bandit:
    """Draws structures and learns from the results."""

    def __init__(self, seed: int, finds: Sequence[Structure] = ()) -> None:
        """`finds` are structures that broke a policy before."""
        self._rng = random.Random(f"semblend-bandit-{seed}")
        self._finds: dict[str, list[Structure]] = {}
        """By form, so that the form a model knows best does not crowd out the others."""
        self._seen: Counter[tuple[str, str]] = Counter()
        for structure in finds:
            self._look_around(structure)
        self._arms = {
            (gene, value): list(PRIOR) for gene, values in GENES.items() for value in values
        }

    def draw(self) -> Structure:
        """The next structure to try."""
        roll = self._rng.random()
        if roll < BY_CHANCE:
            return random_structure(self._rng)
        if roll < BY_CHANCE + BY_CHANGE and self._finds:
            form = self._rng.choice(sorted(self._finds))
            structure = self._rng.choice(self._finds[form])
            for gene in self._rng.sample(list(GENES), self._rng.choice((1, 1, 2, 3))):
                structure = structure.with_gene(gene, self._rng.choice(GENES[gene]))
            return structure
        return Structure(**{gene: self._likeliest(gene) for gene in GENES})

    def learn(self, structure: Structure, alarm: float) -> None:
        """Learn a structure's result: 0, an alarm of 1, or in between for a wavering answer."""
        kind = structure.form, structure.filler
        worth = alarm / (1 + self._seen[kind])
        if alarm == 1.0:
            self._seen[kind] += 1
            self._look_around(structure)
        for gene, value in structure.to_dict().items():
            arm = self._arms[gene, value]
            arm[0] += worth
            arm[1] += 1.0 - worth

    def _look_around(self, structure: Structure) -> None:
        self._finds.setdefault(structure.form, []).append(structure)

    def _likeliest(self, gene: str) -> str:
        drawn = {value: self._rng.betavariate(*self._arms[gene, value]) for value in GENES[gene]}
        return max(drawn, key=lambda value: drawn[value])
