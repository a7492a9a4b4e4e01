"""What answers the red team's prompts: the seam behind which any engine may stand.

The embedded engine's lab is the first. A server can be another: it is sent the donors' prompts,
then the target once with reuse and once without, and only answers come back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from semblend.quality.items import Case, to_item
from semblend.quality.lab import Lab
from semblend.quality.measure import Record, measure, states

FIRM_MARGIN = 0.5
"""Nats by which cold must prefer its answer for an item to count. Below, the odds are under
1.65 to 1, and a change in KL of 0.03 turns the answer over: about what the bound allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What an engine said to one case, cold and warm."""

    case: Case
    cold: str
    warm: str
    shift: float = 0.0
    """How far warm's distribution is from cold's, in [0, 1]; 0 where an engine does not tell."""
    margin: float = math.inf
    """How firmly cold answers, nats; endless where an engine does not tell."""
    reusable_tokens: int = 0
    recomputed_tokens: int = 0
    declined_tokens: int = 0

    @property
    def reused_tokens(self) -> int:
        """Tokens whose K/V is a donor's."""
        return self.reusable_tokens - self.recomputed_tokens - self.declined_tokens

    @property
    def counts(self) -> bool:
        """Only what cold answers right, and firmly, and what reuse could have spoiled."""
        return self.right_cold and self.margin >= FIRM_MARGIN

    @property
    def right_cold(self) -> bool:
        """Whether cold is right and something was reused: a prompt declined whole is cold."""
        return self.cold == self.case.answer and self.reused_tokens > 0

    @property
    def tie_turned(self) -> bool:
        """Whether warm is wrong where cold was right by a hair: told apart, not counted."""
        return self.right_cold and not self.counts and self.warm != self.case.answer

    @property
    def leaked(self) -> bool:
        """Warm states the donor's fact, cold does not."""
        return (
            self.counts
            and states(self.warm, self.case.leaked)
            and not states(self.cold, self.case.leaked)
        )

    @property
    def lost(self) -> bool:
        """Warm is wrong where cold is right."""
        return self.counts and self.warm != self.case.answer

    @property
    def alarm(self) -> float:
        """What the search goes by: 1 for a loss, less for an answer that wavers."""
        if not self.counts:
            return 0.0
        return 1.0 if self.lost else min(0.5, self.shift)


class RedTeamEngine(Protocol):
    """Something that has read the donors' prompts and answers the target's."""

    def answer(self, case: Case) -> Answered | None:
        """Both answers; None where nothing can be reused."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabEngine:
    """The embedded engine under one policy."""

    lab: Lab
    policy: str

    def answer(self, case: Case) -> Answered | None:
        """Cold first: what it cannot answer costs no more than that."""
        records = judge(self.lab, case, (self.policy,))
        return answered(case, records[0]) if records else None


def judge(lab: Lab, case: Case, policies: tuple[str, ...]) -> list[Record]:
    """One case under some policies; nothing where cold is wrong or nothing can be reused."""
    return measure(lab, to_item(case, lab.model.tokenizer), policies, cold_right_only=True)


def answered(case: Case, record: Record) -> Answered:
    """A record, as the red team sees it."""
    return Answered(
        case=case,
        cold=record.cold_answer,
        warm=record.answer,
        margin=record.cold_margin,
        shift=1.0 - math.exp(-max(0.0, record.kl_worst)),
        reusable_tokens=record.reusable_tokens,
        recomputed_tokens=record.recomputed_tokens,
        declined_tokens=record.declined_tokens,
    )
