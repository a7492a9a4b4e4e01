"""The bound a policy must meet to be certified, and the choice among those that meet it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from semblend.quality.figures import CONTROL, PROSE, READING, Figures
from semblend.quality.redteam.finds import Findings, redteam_objections


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """How far a policy may be from cold, checked on each workload separately.

    Means are judged as measured, with no allowance for chance: with 200 items, 1 % is a net loss of
    two answers. A policy that is exactly at the limit fails one time in three, so a certified
    policy has to be better than the limit.
    """

    answers: float = 0.01
    """Exact match, F1 and ROUGE-L may fall this far below cold."""
    kl_epsilon: float = 0.02
    """Mean KL may exceed the 99th percentile of cold's own noise by this many nats. By Pinsker's
    inequality the mean total variation is then at most 0.1.
    """
    recompute: float = 0.20
    """Largest share of reusable tokens that may be recomputed."""
    towards_donor: int = 0
    """Answers on adversarial controls that may change to a donor's fact."""
    items: int = 200
    """Fewest items per workload: fewer cannot tell 1 % from nothing. Real text has what it has."""
    redteam_items: int = 5000
    """Fewest valid red-team items. None may leak, which bounds the share of leaks by 0.06 % (95 %).
    0 turns the red team off.
    """

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def objections(self, rows: Sequence[Figures], *, noise_kl: float) -> list[str]:
        """Reasons against a policy, given its row for every workload."""
        found: list[str] = []
        for row in rows:
            if row.items < self.items and row.workload != READING:
                found.append(f"{row.workload}: {row.items} items, at least {self.items} expected")
            if row.workload.startswith(f"{CONTROL}_") and row.towards_donor > self.towards_donor:
                found.append(f"{row.workload}: {row.towards_donor} answers towards the donor's")
            # Rounding must not decide: a share of 200 items is never exactly 0.01.
            if row.workload != PROSE and row.fall > self.answers + 1e-9:
                found.append(f"{row.workload}: answers fall by {row.fall:.3f}")
            if row.kl > noise_kl + self.kl_epsilon:
                found.append(f"{row.workload}: KL {row.kl:.2g} nats")
            if row.recompute > self.recompute:
                found.append(f"{row.workload}: {row.recompute:.1%} recomputed")
        return found

    def redteam_objections(self, found: Findings | None) -> list[str]:
        """Reasons against a policy, given the red team's findings."""
        return redteam_objections(
            found,
            items=self.redteam_items,
            answers=self.answers,
            towards_donor=self.towards_donor,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPolicy:
    """A policy's price and the reasons against it."""

    policy: str
    price: float
    recompute: float
    objections: tuple[str, ...]


def judge(figures: Sequence[Figures], bound: Bound, *, noise_kl: float) -> list[JudgedPolicy]:
    """Judge every policy that was measured on all workloads, cheapest first.

    A policy that recomputes everything is cold and therefore not a candidate.
    """
    workloads = {row.workload for row in figures}
    by_policy: dict[str, list[Figures]] = {}
    for row in figures:
        by_policy.setdefault(row.policy, []).append(row)
    judged_policies = [
        JudgedPolicy(
            policy=policy,
            price=sum(row.price for row in rows) / len(rows),
            recompute=sum(row.recompute for row in rows) / len(rows),
            objections=tuple(bound.objections(rows, noise_kl=noise_kl)),
        )
        for policy, rows in by_policy.items()
        if {row.workload for row in rows} == workloads and policy not in ("cold", "all")
    ]
    return sorted(judged_policies, key=lambda judged: judged.price)


def choose(judged_policies: Sequence[JudgedPolicy]) -> JudgedPolicy | None:
    """The cheapest policy without objections."""
    return next((judged for judged in judged_policies if not judged.objections), None)
