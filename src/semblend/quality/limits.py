"""The limits a certificate states with confidence, and one policy watched on one workload."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from semblend.quality.doubt import Doubt, LimitAnswer, items_at_least
from semblend.quality.figures import CONTROL
from semblend.quality.measure import Record
from semblend.quality.redteam.finds import Findings, redteam_objections

PILOT = 16
"""Items after which it is settled what a workload is judged by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far from cold a policy may be, on every workload by itself.

    A policy that breaks `answers` or `disagreement` on any workload is certified with probability
    1 - `confidence` at most: each workload has to be decided, so their number does not matter.
    The other limits are judged as measured.
    """

    answers: float = 0.02
    """Of the answers that cold has right, those that may be lost."""
    disagreement: float = 0.10
    """Where no answer is right or cold seldom has it: how far answers may differ from cold's."""
    kl_epsilon: float = 0.02
    """Mean KL may exceed the 99th percentile of cold's own noise by this much, nats."""
    recompute: float = 0.20
    """Most of what can be reused that may be computed again, spans that are declined included:
    what is worth serving, not what is safe."""
    towards_donor: int = 0
    """Answers on adversarial controls that may change to a donor's fact."""
    redteam_items: int = 300
    """Fewest valid red-team items. None may leak; 300 bound the share of leaks by 1 % (95 %).
    0 turns the red team off."""
    confidence: float = 0.95
    cold_right: float = 0.5
    """Workloads of which cold answers fewer right are judged by disagreement alone."""

    @property
    def alpha(self) -> float:
        """How likely a limit that is broken may be called kept."""
        return 1.0 - self.confidence

    @property
    def least_items(self) -> int:
        """Items a workload takes where not one answer is lost."""
        return items_at_least(limit=self.answers, alpha=self.alpha)

    def redteam_objections(self, found: Findings | None) -> list[str]:
        """Reasons against a policy, given the red team's findings."""
        return redteam_objections(
            found,
            items=self.redteam_items,
            answers=self.answers,
            towards_donor=self.towards_donor,
        )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


class LimitWatch:
    """One policy on one workload, item by item, until it is decided."""

    def __init__(self, workload: str, policy: str, limits: Limits) -> None:
        self.workload = workload
        self.policy = policy
        self.records: list[Record] = []
        self.unconfirmed = 0
        """Items of which the engine confirmed no reuse: they are no evidence."""
        self._limits = limits
        self._lost = Doubt(limit=limits.answers, alpha=limits.alpha)
        self._differ = Doubt(limit=limits.disagreement, alpha=limits.alpha)
        self._by_answers: bool | None = None

    def observe(self, record: Record | None) -> None:
        """Take one item's record; None where nothing could be reused."""
        if record is None or not reused(record):
            self.unconfirmed += 1
            return
        self.records.append(record)
        self._differ.observe(min(1.0, max(0.0, 1.0 - record.top1)))
        if record.expected and record.cold_right:
            self._lost.observe(float(not record.right))
        if len(self.records) == PILOT:
            self._by_answers = self._answers_count()

    @property
    def by_answers(self) -> bool:
        """Whether right answers are judged; settled after the first items, by cold's alone."""
        return self._answers_count() if self._by_answers is None else self._by_answers

    @property
    def answer(self) -> LimitAnswer:
        """What is known: broken on any leak, otherwise as the limit of this workload is."""
        if self.leaks > self._limits.towards_donor:
            return LimitAnswer.BROKEN
        if len(self.records) < min(PILOT, self._limits.least_items):
            return LimitAnswer.OPEN
        return (self._lost if self.by_answers else self._differ).answer

    @property
    def leaks(self) -> int:
        """Answers on controls that state the donor's fact where cold's do not."""
        if not self.workload.startswith(CONTROL):
            return 0
        return sum(r.leaked and not r.cold_leaked for r in self.records)

    @property
    def lost(self) -> int:
        """Answers that cold has right and this policy has not."""
        return sum(r.cold_right and not r.right for r in self.records if r.expected)

    @property
    def price(self) -> float:
        """What is computed of what could be reused."""
        reusable = sum(r.reusable_tokens for r in self.records)
        paid = sum(r.recomputed_tokens + r.declined_tokens for r in self.records)
        return paid / reusable if reusable else 1.0

    def objections(self, *, noise_kl: float) -> list[str]:
        """What speaks against the policy on this workload, as far as is known."""
        said: list[str] = []
        count, limits = len(self.records), self._limits
        if self.leaks > limits.towards_donor:
            said.append(f"{self.leaks} answers towards the donor's")
        elif self.answer is LimitAnswer.BROKEN:
            said.append(f"{self._judged()}: more than the limit")
        elif self.answer is LimitAnswer.OPEN:
            said.append(f"not decided after {count} items ({self._judged()})")
        kl = sum(r.kl for r in self.records) / count if count else 0.0
        if kl > noise_kl + limits.kl_epsilon:
            said.append(f"KL {kl:.2g} nats")
        if count and self.price > limits.recompute:
            said.append(f"{self.price:.1%} recomputed")
        return [f"{self.workload}: {text}" for text in said]

    def to_dict(self) -> dict[str, Any]:
        """What the certificate says about it."""
        doubt = self._lost if self.by_answers else self._differ
        return {
            "workload": self.workload,
            "judged_by": "right answers" if self.by_answers else "agreement with cold",
            "limit": doubt.limit,
            "items": doubt.items,
            "losses": round(doubt.losses, 3),
            "answer": self.answer.value,
            "without_reuse": self.unconfirmed,
        }

    def _judged(self) -> str:
        if self.by_answers:
            return f"{self.lost} of {self._lost.items} right answers lost"
        return f"answers differ by {self._differ.losses / max(1, self._differ.items):.1%}"

    def _answers_count(self) -> bool:
        asked = [record for record in self.records if record.expected]
        if not asked:
            return False
        right = sum(record.cold_right for record in asked)
        return right >= self._limits.cold_right * len(asked)


def reused(record: Record) -> bool:
    """Whether anything was taken from donors: an item declined whole is cold against cold."""
    return record.reusable_tokens > record.recomputed_tokens + record.declined_tokens
