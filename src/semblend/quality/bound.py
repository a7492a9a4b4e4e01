"""The bound a policy must keep to be certified, and the choice among those that do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from semblend.quality.figures import CONTROL, PROSE, READING, Figures
from semblend.quality.redteam.findings import Findings


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """How far from cold a policy may be, on every workload by itself.

    Judged are the means as measured, without an allowance for chance: with 200 items, 1 % are
    two answers lost on balance. A policy that is at the limit in truth fails every third time;
    one that is to be certified has to be better than the limit.
    """

    answers: float = 0.01
    """Exact match, F1 and ROUGE-L may fall by this much below cold's."""
    kl_epsilon: float = 0.02
    """Mean KL may exceed the 99th percentile of cold's own noise by this much, nats: by
    Pinsker's inequality the mean total variation is then at most 0.1."""
    recompute: float = 0.20
    """Most of the reusable tokens that may be recomputed."""
    towards_donor: int = 0
    """Answers on adversarial controls that may change to a donor's fact."""
    items: int = 200
    """Least items a workload: fewer cannot tell 1 % from nothing. Real text has what it has."""
    redteam_items: int = 5000
    """Least items of the red team that count; none may go to the donor's fact, which bounds the
    share of leaks by 0.06 % (95 %). 0: no red team."""

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    def objections(self, rows: Sequence[Figures], *, noise_kl: float) -> list[str]:
        """What speaks against one policy, given its row of every workload."""
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
        """What speaks against a policy, given what the red team found."""
        if not self.redteam_items:
            return []
        if found is None:
            return ["no red team attacked it"]
        said: list[str] = []
        if found.items < self.redteam_items:
            said.append(f"red team: {found.items} items, at least {self.redteam_items} expected")
        if found.leaks > self.towards_donor:
            said.append(f"red team: {found.leaks} of {found.items} answers towards the donor's")
        if found.lost > self.answers * found.items:
            said.append(f"red team: {found.lost} of {found.items} answers lost")
        return said


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One policy: its price, and what speaks against it."""

    policy: str
    price: float
    recompute: float
    objections: tuple[str, ...]


def judge(figures: Sequence[Figures], bound: Bound, *, noise_kl: float) -> list[Verdict]:
    """Every policy that was measured on all workloads, cheapest first.

    A policy that recomputes everything is no candidate: that is cold.
    """
    workloads = {row.workload for row in figures}
    by_policy: dict[str, list[Figures]] = {}
    for row in figures:
        by_policy.setdefault(row.policy, []).append(row)
    verdicts = [
        Verdict(
            policy=policy,
            price=sum(row.price for row in rows) / len(rows),
            recompute=sum(row.recompute for row in rows) / len(rows),
            objections=tuple(bound.objections(rows, noise_kl=noise_kl)),
        )
        for policy, rows in by_policy.items()
        if {row.workload for row in rows} == workloads and policy not in ("cold", "all")
    ]
    return sorted(verdicts, key=lambda verdict: verdict.price)


def choose(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The cheapest policy nothing speaks against."""
    return next((verdict for verdict in verdicts if not verdict.objections), None)
