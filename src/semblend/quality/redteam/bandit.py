"""Where the red team spends its items: on values of genes that came before an alarm.

Each value of each gene is an arm with a Beta posterior of the alarm it raises; a structure is
drawn gene by gene (Thompson sampling). A part is drawn by chance and a part by changing what
was found, so that no value is given up and a find is looked at from all sides.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from semblend.quality.redteam.grammar import GENES, Structure, random_structure

BY_CHANCE = 0.2
BY_CHANGE = 0.3
PRIOR = (0.5, 4.0)
"""Few structures raise an alarm."""


class Bandit:
    """Draws structures and learns from what came of them."""

    def __init__(self, seed: int, finds: Sequence[Structure] = ()) -> None:
        """`finds` are structures that broke some policy before."""
        self._rng = random.Random(f"semblend-bandit-{seed}")
        self._finds = list(finds)
        self._arms = {
            (gene, value): list(PRIOR) for gene, values in GENES.items() for value in values
        }

    def draw(self) -> Structure:
        """The next structure to try."""
        roll = self._rng.random()
        if roll < BY_CHANCE:
            return random_structure(self._rng)
        if roll < BY_CHANCE + BY_CHANGE and self._finds:
            structure = self._rng.choice(self._finds)
            for gene in self._rng.sample(list(GENES), self._rng.choice((1, 1, 2, 3))):
                structure = structure.with_gene(gene, self._rng.choice(GENES[gene]))
            return structure
        return Structure(**{gene: self._likeliest(gene) for gene in GENES})

    def learn(self, structure: Structure, alarm: float) -> None:
        """Take in what a structure came to: 0, an alarm of 1, or a wavering answer between."""
        for gene, value in structure.to_dict().items():
            arm = self._arms[gene, value]
            arm[0] += alarm
            arm[1] += 1.0 - alarm

    def found(self, structure: Structure) -> None:
        """Look around this one from now on."""
        self._finds.append(structure)

    def _likeliest(self, gene: str) -> str:
        drawn = {value: self._rng.betavariate(*self._arms[gene, value]) for value in GENES[gene]}
        return max(drawn, key=lambda value: drawn[value])
