"""The interface through which any engine can answer the red team's prompts.

The embedded engine's lab is the first implementation. A server could be another: it would get the
donors' prompts, then the target once with reuse and once without, and return only answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from semblend.quality.items import Case, to_item
from semblend.quality.lab import Lab
from semblend.quality.measure import Record, measure, states

FIRM_MARGIN = 0.5
"""Nats by which cold must prefer its answer for an item to count. Below that, the odds are under
1.65 to 1 and a KL change of 0.03, about what the bound allows, flips the answer.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """An engine's cold and warm answer to one case."""

    case: Case
    cold: str
    warm: str
    shift: float = 0.0
    """Distance of warm's distribution from cold's, in [0, 1]; 0 if the engine does not report it.
    """
    margin: float = math.inf
    """Cold's margin in nats; infinite if the engine does not report it."""
    reusable_tokens: int = 0
    recomputed_tokens: int = 0
    declined_tokens: int = 0

    @property
    def reused_tokens(self) -> int:
        """Tokens whose K/V is a donor's."""
        return self.reusable_tokens - self.recomputed_tokens - self.declined_tokens

    @property
    def counts(self) -> bool:
        """Whether cold is right by a clear margin and reuse could have changed the answer."""
        return self.right_cold and self.margin >= FIRM_MARGIN

    @property
    def right_cold(self) -> bool:
        """Whether cold is right and something was reused. A prompt declined completely is cold."""
        return self.cold == self.case.answer and self.reused_tokens > 0

    @property
    def tie_turned(self) -> bool:
        """Whether warm is wrong where cold was right by a small margin. Reported, not counted."""
        return self.right_cold and not self.counts and self.warm != self.case.answer

    @property
    def leaked(self) -> bool:
        """Whether warm states the donor's fact and cold does not."""
        return (
            self.counts
            and states(self.warm, self.case.leaked)
            and not states(self.cold, self.case.leaked)
        )

    @property
    def lost(self) -> bool:
        """Whether warm is wrong and cold is right."""
        return self.counts and self.warm != self.case.answer

    @property
    def alarm(self) -> float:
        """The search's objective: 1 for a loss, less for a wavering answer."""
        if not self.counts:
            return 0.0
        return 1.0 if self.lost else min(0.5, self.shift)


class RedTeamEngine(Protocol):
    """Something that has read the donors' prompts and answers the target's."""

    def answer(self, case: Case) -> Answered | None:
        """Both answers, or None if nothing can be reused."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabEngine:
    """The embedded engine under one policy."""

    lab: Lab
    policy: str

    def answer(self, case: Case) -> Answered | None:
        """Ask cold first: an item it cannot answer costs nothing more."""
        records = judge(self.lab, case, (self.policy,))
        return answered(case, records[0]) if records else None


def judge(lab: Lab, case: Case, policies: tuple[str, ...]) -> list[Record]:
    """Judge one case under some policies; empty if cold is wrong or nothing is reusable."""
    return measure(lab, to_item(case, lab.model.tokenizer), policies, cold_right_only=True)


def answered(case: Case, record: Record) -> Answered:
    """Convert a record for the red team."""
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
