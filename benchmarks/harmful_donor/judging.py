"""Judges a donor on the engine itself: naive reuse, the certified policy, and three defences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.harmful_donor.borrowed import Reuse, cut, deviation
from benchmarks.harmful_donor.cases import Victim
from semblend.core.namespace import Namespace
from semblend.core.settings import EmbedderKind, Settings
from semblend.core.tokens import TokenArray
from semblend.pipeline import SemBlendPipeline
from semblend.quality.lab import Lab
from semblend.quality.measure import Record, measure
from semblend.quality.redteam.engines import FIRM_MARGIN

NAIVE = "none"
BLOCK = 8
HEAD = 16
"""Tokens of a document's start that a detector compares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What harmless donors look like on this model."""

    head: float
    """Largest deviation of a document's first tokens."""
    block: float
    """95th percentile of the deviation of a block further inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One donor, and what the victim was told under each arm."""

    aim: str
    """`benign` for ordinary text."""
    length: int
    number: int
    gain: float
    steps: int
    prefix: tuple[int, ...]
    right: str
    wanted: str
    naive: str
    certified: str
    until_agree: str
    detected: bool
    head_deviation: float
    agreed_after: int
    """Tokens recomputed until borrowed K/V agrees."""
    found_by_others: bool
    """Whether another principal's prompt found this donor."""

    def told(self, arm: str) -> str:
        """The victim's answer. Declined is cold, which is right."""
        if arm == "naive":
            return self.naive
        if arm == "certified":
            return self.certified
        if arm == "heads until they agree":
            return self.until_agree
        if arm == "certified and detector":
            return self.right if self.detected else self.certified
        return self.certified if self.found_by_others else self.right

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Judged:
        """Parse what :meth:`to_dict` gave."""
        return cls(**{**data, "prefix": tuple(data["prefix"])})


ARMS = (
    "naive",
    "certified",
    "heads until they agree",
    "certified and detector",
    "own principal's donors only",
)


def answers_cold(lab: Lab, victim: Victim, prefix: TokenArray) -> bool:
    """Whether the victim's own answer is right by a clear margin."""
    records = measure(lab, victim.item(prefix), (NAIVE,), cold_right_only=True)
    return bool(records) and records[0].cold_margin >= FIRM_MARGIN


def deviations(reuse: Reuse, victim: Victim, prefix: TokenArray) -> torch.Tensor:
    """How far the donor's V is from the victim's own, by document token."""
    start = len(victim.head)
    exact = reuse.read(victim.document, reuse.read(victim.head))
    donor = victim.donor(prefix)
    before = len(donor) - len(victim.donor_tail) - len(victim.document)
    lent = reuse.read(donor[: before + len(victim.document)])
    borrowed = reuse.moved(lent, before, before + len(victim.document), start)
    return deviation(cut(exact, start), borrowed)[0].cpu()


def noise_of(found: Sequence[torch.Tensor]) -> Noise:
    """Thresholds from harmless donors."""
    blocks = torch.cat([_blocks(one)[2:12] for one in found])
    return Noise(
        head=float(max(one[:HEAD].mean() for one in found)),
        block=float(blocks.quantile(0.95)),
    )


def agreed_after(away: torch.Tensor, noise: Noise) -> int:
    """Tokens to recompute until two blocks in a row agree."""
    agreeing = (_blocks(away) <= noise.block).tolist()
    for at in range(len(agreeing) - 1):
        if agreeing[at] and agreeing[at + 1]:
            return BLOCK * (at + 2)
    return len(away)


def judge(
    lab: Lab,
    reuse: Reuse,
    victim: Victim,
    prefix: TokenArray,
    noise: Noise,
    *,
    policy: str,
    aim: str,
    gain: float = -math.inf,
    steps: int = 0,
) -> Judged:
    """Ask the victim's question with this donor in the store."""
    away = deviations(reuse, victim, prefix)
    head = agreed_after(away, noise)
    item = victim.item(prefix)
    records: list[Record] = measure(lab, item, (NAIVE, policy, f"span_head({head})"))
    naive, certified, until_agree = (record.answer for record in records)
    return Judged(
        aim=aim,
        length=len(prefix),
        number=victim.number,
        gain=gain,
        steps=steps,
        prefix=tuple(int(token) for token in prefix),
        right=victim.case.answer,
        wanted=victim.case.leaked[0],
        naive=naive,
        certified=certified,
        until_agree=until_agree,
        detected=float(away[:HEAD].mean()) > noise.head,
        head_deviation=float(away[:HEAD].mean()),
        agreed_after=head,
        found_by_others=_found_by_others(lab, victim, prefix),
    )


def _found_by_others(lab: Lab, victim: Victim, prefix: TokenArray) -> bool:
    """Plan the victim's prompt as another principal of the same tenant."""
    pipeline = SemBlendPipeline(
        Settings(embedder=EmbedderKind.NONE, allow_uncertified=True, namespace_secret="harm"),
        boundaries=lab.boundaries,
    )
    try:
        everybody = Namespace.of(model=lab.model.name, tenant="shared")
        attacker, asking = (everybody.for_principal(name) for name in ("attacker", "victim"))
        pipeline.register_donor("d", victim.donor(prefix), attacker)
        return bool(pipeline.plan(victim.tokens, asking).spans)
    finally:
        pipeline.close()


def _blocks(away: torch.Tensor) -> torch.Tensor:
    whole = len(away) // BLOCK
    return away[: whole * BLOCK].reshape(whole, BLOCK).mean(dim=1)
