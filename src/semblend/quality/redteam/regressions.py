"""Structures that once broke a policy. They ship, and every policy is tested on them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from semblend.quality.items import Case
from semblend.quality.redteam.attempts import Attempt
from semblend.quality.redteam.grammar import Structure
from semblend.quality.redteam.writing import write

SHIPPED = Path(__file__).with_name("regressions.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """A find, with the seed of its words and the policy it broke."""

    structure: Structure
    seed: int
    leaked: bool
    broke: str

    @property
    def case(self) -> Case:
        """The prompts: a donor, a target, the right answer and the donor's."""
        return write(self.structure, self.seed)


def regressions(path: Path = SHIPPED) -> list[Regression]:
    """Read a file of regressions, in order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [
        Regression(**{**data, "structure": Structure(**data["structure"])})
        for data in map(json.loads, lines)
    ]


def added(
    known: Sequence[Regression], attempts: Iterable[Attempt], *, policy: str
) -> list[Regression]:
    """The known regressions plus one per new signature, leaks first."""
    found = {one.structure.signature: one for one in known}
    for attempt in sorted(attempts, key=lambda one: not one.leaked):
        if attempt.lost:
            found.setdefault(
                attempt.smallest.signature,
                Regression(
                    structure=attempt.smallest,
                    seed=attempt.seed,
                    leaked=attempt.leaked,
                    broke=policy,
                ),
            )
    return list(found.values())


def write_regressions(path: Path, found: Sequence[Regression]) -> None:
    """Write one line of JSON each, without plain genes."""
    plain = Structure().to_dict()
    lines: list[str] = []
    for one in found:
        odd = {g: v for g, v in one.structure.to_dict().items() if v != plain[g]}
        data = {"structure": odd, "seed": one.seed, "leaked": one.leaked, "broke": one.broke}
        lines.append(json.dumps(data) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
