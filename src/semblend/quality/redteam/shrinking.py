"""Shrinks a find: every gene that does not matter goes back to plain."""

from __future__ import annotations

from collections.abc import Callable

from semblend.quality.redteam.grammar import GENES, Structure

Breaks = Callable[[Structure], bool]
"""Whether a structure still breaks the policy."""


def shrink(structure: Structure, breaks: Breaks) -> Structure:
    """The plainest nearby structure that still breaks the policy.

    Each gene is tried plain, and a gap is halved as long as that works. The result still breaks the
    policy.
    """
    for gene, values in GENES.items():
        plain = structure.with_gene(gene, values[0])
        if plain != structure and breaks(plain):
            structure = plain
    gaps = GENES["gap"]
    while (at := gaps.index(structure.gap)) > 0:
        smaller = structure.with_gene("gap", gaps[at - 1])
        if not breaks(smaller):
            break
        structure = smaller
    return structure
