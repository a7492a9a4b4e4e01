"""Where the red team spends its items: on gene values that raised alarms before.

Each value of each gene is an arm with two Beta posteriors: how often its items count at all (most
forms are beyond a small model even when cold), and how often those that count raise an alarm. A
structure is drawn gene by gene, by the product of both (Thompson sampling). Some structures are
random and some are mutations of finds, so that no value is given up and finds are explored from all
sides. Repeated finds say little that is new, so alarms of the same form and filler count less each
time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from semblend.quality.redteam.grammar import GENES, Structure, random_structure

BY_CHANCE = 0.2
BY_CHANGE = 0.3
ALARMS = (0.5, 4.0)
"""Few structures raise an alarm."""
COUNTS = (1.0, 1.0)
Kind = tuple[str, str]
"""Form and filler of a find."""


class Bandit:
    """Draws structures and learns from the results."""

    def __init__(self, seed: int, finds: Sequence[Structure] = ()) -> None:
        """`finds` are structures that broke a policy before."""
        self._rng = random.Random(f"semblend-bandit-{seed}")
        self._finds: dict[Kind, list[Structure]] = {}
        """By kind, so that the hole found most often does not crowd out the others."""
        self._seen: Counter[Kind] = Counter()
        for structure in finds:
            self._look_around(structure)
        arms = [(gene, value) for gene, values in GENES.items() for value in values]
        self._alarms = {arm: list(ALARMS) for arm in arms}
        self._counts = {arm: list(COUNTS) for arm in arms}

    def draw(self) -> Structure:
        """The next structure to try."""
        roll = self._rng.random()
        if roll < BY_CHANCE:
            return random_structure(self._rng)
        if roll < BY_CHANCE + BY_CHANGE and self._finds:
            kind = self._rng.choice(sorted(self._finds))
            structure = self._rng.choice(self._finds[kind])
            for gene in self._rng.sample(list(GENES), self._rng.choice((1, 1, 2, 3))):
                structure = structure.with_gene(gene, self._rng.choice(GENES[gene]))
            return structure
        return Structure(**{gene: self._likeliest(gene) for gene in GENES})

    def learn(self, structure: Structure, alarm: float, *, counts: bool) -> None:
        """Learn a structure's result.

        Parameters
        ----------
        structure
            What was tried.
        alarm
            1 for a lost answer, less for one that wavered.
        counts
            Whether the item says anything about the policy.
        """
        for arm in structure.to_dict().items():
            self._counts[arm][0 if counts else 1] += 1.0
        if not counts:
            return
        kind = _kind(structure)
        worth = alarm / (1 + self._seen[kind])
        if alarm == 1.0:
            self._seen[kind] += 1
            self._look_around(structure)
        for arm in structure.to_dict().items():
            self._alarms[arm][0] += worth
            self._alarms[arm][1] += 1.0 - worth

    def _look_around(self, structure: Structure) -> None:
        self._finds.setdefault(_kind(structure), []).append(structure)

    def _likeliest(self, gene: str) -> str:
        def drawn(value: str) -> float:
            arm = gene, value
            counts = self._rng.betavariate(*self._counts[arm])
            return counts * self._rng.betavariate(*self._alarms[arm])

        worth = {value: drawn(value) for value in GENES[gene]}
        return max(worth, key=lambda value: worth[value])


def _kind(structure: Structure) -> Kind:
    # Without a gap no filler is written, so such finds are alike.
    return structure.form, structure.filler if structure.gap != "0" else "plain"
