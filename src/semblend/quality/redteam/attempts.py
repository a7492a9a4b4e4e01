"""The result of one item as a line of JSON, so that searches can be resumed and merged."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from semblend.core.errors import SerialisationError
from semblend.quality.redteam.engines import Answered
from semblend.quality.redteam.grammar import Structure


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One structure, the seed of its words, and the engine's answers."""

    structure: Structure
    seed: int
    counts: bool = False
    """Whether cold is right by a clear margin and something was reused. Only then does it say
    anything about the policy.
    """
    tie_turned: bool = False
    """Cold was right by a small margin and warm is wrong."""
    leaked: bool = False
    """Warm states the donor's fact, and does not where no donor states it."""
    unprompted: bool = False
    """Warm states the donor's fact even where no donor states it: a loss, but no leak."""
    lost: bool = False
    """Warm is wrong."""
    alarm: float = 0.0
    right: str = ""
    warm: str = ""
    donors: str = ""
    """The donor's fact."""
    reusable_tokens: int = 0
    recomputed_tokens: int = 0
    declined_tokens: int = 0
    shrunk: Structure | None = None
    """For a loss: the plainest nearby structure that also loses."""

    @property
    def smallest(self) -> Structure:
        """The structure to look at."""
        return self.shrunk or self.structure

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), sort_keys=True) + "\n"

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Attempt:
        """Parse what :meth:`to_line` wrote."""
        shrunk = data["shrunk"]
        return cls(
            **{
                **data,
                "structure": Structure(**data["structure"]),
                "shrunk": None if shrunk is None else Structure(**shrunk),
            }
        )


def attempt_of(structure: Structure, seed: int, answered: Answered | None) -> Attempt:
    """Turn an engine's answer into an attempt; empty if cold was wrong or nothing was reusable."""
    if answered is None:
        return Attempt(structure=structure, seed=seed)
    return Attempt(
        structure=structure,
        seed=seed,
        counts=answered.counts,
        tie_turned=answered.tie_turned,
        leaked=answered.leaked,
        lost=answered.lost,
        alarm=round(answered.alarm, 4),
        right=answered.case.answer,
        warm=answered.warm,
        donors=" / ".join(answered.case.leaked),
        reusable_tokens=answered.reusable_tokens,
        recomputed_tokens=answered.recomputed_tokens,
        declined_tokens=answered.declined_tokens,
    )


def read_attempts(paths: Iterable[Path]) -> list[Attempt]:
    """Read all attempts in some files. A last line cut short by a crash is dropped.

    Raises
    ------
    SerialisationError
        If a complete line is not an attempt.
    """
    found: list[Attempt] = []
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], 1):
            try:
                found.append(Attempt.from_dict(json.loads(line)))
            except (KeyError, TypeError, ValueError) as error:
                raise SerialisationError(f"{path}:{number}: not an attempt: {error}") from error
    return found


def add_attempts(path: Path, attempts: Sequence[Attempt]) -> None:
    """Append, so that existing lines survive a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(attempt.to_line() for attempt in attempts)
