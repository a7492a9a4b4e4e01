"""What a red team found, and what it could not find, for certificates and people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semblend.quality.intervals import at_most
from semblend.quality.redteam.attempts import Attempt
from semblend.quality.redteam.grammar import GENES

MOST_SHOWN = 40
"""Finds listed in a certificate."""
HARDLY = 5
"""A gene value with fewer valid items counts as hardly tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Figures over all attempts on one policy."""

    policy: str
    seed: int
    tried: int
    items: int
    """Valid items: cold is right by a clear margin, and something was reused."""
    leaks: int
    unprompted: int
    """Answers that are the donor's fact although they also come where no donor states it."""
    lost: int
    """Wrong answers, those two among them."""
    ties_turned: int
    """Lost answers that cold gave by a small margin. Not among the items."""
    reusable_tokens: int
    recomputed_tokens: int
    finds: tuple[Mapping[str, Any], ...]
    hardly_tried: tuple[str, ...]
    """Gene values for which this model gave the search almost no items."""

    @property
    def most_leaks(self) -> float:
        """95 % upper bound on the share of leaks among items as the search draws them."""
        return at_most(self.leaks, self.items)

    @property
    def recompute(self) -> float:
        """Share of reusable tokens that was recomputed."""
        return self.recomputed_tokens / self.reusable_tokens if self.reusable_tokens else 0.0

    @property
    def sentence(self) -> str:
        """A one-line summary."""
        return (
            f"{self.leaks} of {self.items} adversarial items answered with the donor's fact "
            f"(95 % upper bound {self.most_leaks:.2%}), {self.lost} lost, {self.unprompted} of "
            f"them to that fact without a donor that states it; {self.tried} tried, "
            f"{self.ties_turned} near ties of cold turned over, "
            f"{self.recompute:.1%} recomputed"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "seed": self.seed,
            "tried": self.tried,
            "items": self.items,
            "leaks": self.leaks,
            "unprompted": self.unprompted,
            "lost": self.lost,
            "ties_turned": self.ties_turned,
            "most_leaks": round(self.most_leaks, 6),
            "recompute": round(self.recompute, 4),
            "finds": [dict(find) for find in self.finds],
            "hardly_tried": list(self.hardly_tried),
        }


def redteam_objections(
    found: Findings | None, *, items: int, answers: float, towards_donor: int
) -> list[str]:
    """Reasons against a policy: too few valid items, leaks, or too many answers lost.

    Nothing is asked where no items are.
    """
    if not items:
        return []
    if found is None:
        return ["no red team attacked it"]
    said: list[str] = []
    if found.items < items:
        said.append(f"red team: {found.items} items, at least {items} expected")
    if found.leaks > towards_donor:
        said.append(f"red team: {found.leaks} of {found.items} answers towards the donor's")
    if found.lost > answers * found.items:
        said.append(f"red team: {found.lost} of {found.items} answers lost")
    return said


def findings_of(attempts: Sequence[Attempt], *, policy: str, seed: int) -> Findings:
    """Count, and keep one find per signature, leaks first."""
    counted = [attempt for attempt in attempts if attempt.counts]
    finds: dict[str, Mapping[str, Any]] = {}
    for attempt in sorted(counted, key=lambda one: (not one.leaked, one.shrunk is None)):
        if attempt.lost:
            finds.setdefault(attempt.smallest.signature, _find(attempt))
    seen = {(gene, value): 0 for gene, values in GENES.items() for value in values}
    for attempt in counted:
        for gene, value in attempt.structure.to_dict().items():
            seen[gene, value] += 1
    return Findings(
        policy=policy,
        seed=seed,
        tried=len(attempts),
        items=len(counted),
        leaks=sum(attempt.leaked for attempt in counted),
        unprompted=sum(attempt.unprompted for attempt in counted),
        lost=sum(attempt.lost for attempt in counted),
        ties_turned=sum(attempt.tie_turned for attempt in attempts),
        reusable_tokens=sum(attempt.reusable_tokens for attempt in counted),
        recomputed_tokens=sum(attempt.recomputed_tokens for attempt in counted),
        finds=tuple(list(finds.values())[:MOST_SHOWN]),
        hardly_tried=tuple(
            f"{gene}={value}" for (gene, value), count in seen.items() if count < HARDLY
        ),
    )


def _find(attempt: Attempt) -> dict[str, Any]:
    return {
        "structure": attempt.smallest.to_dict(),
        "signature": attempt.smallest.signature,
        "seed": attempt.seed,
        "leaked": attempt.leaked,
        "right": attempt.right,
        "warm": attempt.warm,
        "donors": attempt.donors,
    }
