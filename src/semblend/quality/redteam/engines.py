"""The interface through which any engine answers the red team's prompts.

Every engine that can be certified is one: the embedded engine's lab, and engines that serve. Those
get the donors' prompts, then the target with reuse and without, and give only answers and the
likeliest tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from semblend.quality.items import Case, to_item
from semblend.quality.measure import Record, states
from semblend.quality.seam import MeasuredEngine

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
    cold_is_right: bool
    warm_is_right: bool
    """As the engine's measurement judges: a model that talks may say more than the answer."""
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
        return self.cold_is_right and self.reused_tokens > 0

    @property
    def tie_turned(self) -> bool:
        """Whether warm is wrong where cold was right by a small margin. Reported, not counted."""
        return self.right_cold and not self.counts and not self.warm_is_right

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
        return self.counts and not self.warm_is_right

    @property
    def alarm(self) -> float:
        """The search's objective: 1 for a loss, less for a wavering answer."""
        if not self.counts:
            return 0.0
        return 1.0 if self.lost else min(0.5, self.shift)


class RedTeamEngine(Protocol):
    """Something that has read the donors' prompts and answers the targets'."""

    @property
    def batch(self) -> int:
        """Cases that it likes to be given at once."""
        ...

    def answers(self, cases: Sequence[Case]) -> list[Answered | None]:
        """Both answers to each; None where cold is wrong or nothing can be reused."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttackedEngine:
    """An engine that can be certified, under one policy."""

    engine: MeasuredEngine
    policy: str

    @property
    def batch(self) -> int:
        """As the engine likes it."""
        return self.engine.batch

    def answers(self, cases: Sequence[Case]) -> list[Answered | None]:
        """Ask cold first: an item it cannot answer costs nothing more."""
        work = [(to_item(case, self.engine.tokenizer), (self.policy,)) for case in cases]
        found = self.engine.measure(work, cold_right_only=True)
        return [
            answered(case, records[0]) if records else None
            for case, records in zip(cases, found, strict=True)
        ]


def answered(case: Case, record: Record) -> Answered:
    """Convert a record for the red team."""
    return Answered(
        case=case,
        cold=record.cold_answer,
        warm=record.answer,
        cold_is_right=record.cold_right,
        warm_is_right=record.right,
        margin=record.cold_margin,
        shift=1.0 - math.exp(-max(0.0, record.kl_worst)),
        reusable_tokens=record.reusable_tokens,
        recomputed_tokens=record.recomputed_tokens,
        declined_tokens=record.declined_tokens,
    )
