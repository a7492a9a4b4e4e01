"""What a run measures: everything that must stay the same when it is continued."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from benchmarks.evidence.arms import Machine, Memory
from benchmarks.evidence.sweep import SweepRule
from sembench.errors import UsageError

FILE = "settings.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One run's parameters."""

    machine: Machine
    model: str
    tokenizer: str
    tokens: int
    """Length of prompts, about."""
    requests: int
    """Requests per rate."""
    max_tokens: int
    seeds: int
    limit_ms: float
    """A rate passes if the 99th percentile of the time to the first token is at most this."""
    rate_start: float
    rate_factor: float
    rate_most: int
    rate_refine: int
    over_time: int
    """Requests of the series over time; 0 leaves it out."""
    cache_bytes: int
    host_bytes: int
    threads: int
    """Of the engine, on a CPU."""
    certified: bool
    """Whether the package holds a certificate for the model."""
    warm_up: int = 0
    """Requests answered before a rate's first, one by one; they are in no figure."""

    @property
    def rule(self) -> SweepRule:
        """How rates are chosen."""
        return SweepRule(
            start=self.rate_start,
            factor=self.rate_factor,
            most=self.rate_most,
            refine=self.rate_refine,
        )

    @property
    def memory(self) -> Memory:
        """What every arm gets alike."""
        return Memory(cache=self.cache_bytes, host=self.host_bytes)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The settings of a run that was started.

        Raises
        ------
        UsageError
            If there are none, or they are of another version of this program.
        """
        try:
            data = json.loads((folder / FILE).read_text(encoding="utf-8"))
            return cls(**{**data, "machine": Machine(data["machine"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UsageError(f"--output: {folder / FILE} cannot be read ({error})") from error

    def begin(self, folder: Path, *, resume: bool) -> None:
        """Write the settings, or check that a continued run has the same.

        Raises
        ------
        UsageError
            If the folder holds a run and `resume` is off, or the run had other settings.
        """
        if not (folder / FILE).exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / FILE).write_text(json.dumps(self.to_dict(), indent=2) + "\n", "utf-8")
            return
        if not resume:
            raise UsageError(f"--output: {folder} holds a run; continue it with --resume")
        before = Settings.read(folder)
        changed = [
            f"{field.name} was {getattr(before, field.name)}, is {getattr(self, field.name)}"
            for field in fields(self)
            if getattr(before, field.name) != getattr(self, field.name)
        ]
        if changed:
            raise UsageError(f"--resume: {folder} was measured otherwise: {'; '.join(changed)}")
