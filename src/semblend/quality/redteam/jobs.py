"""Runs a search on a model, in one process or several, so that it can be interrupted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from semblend.planning.policies.base import policy_from_spec
from semblend.quality.embedded import MeasuredEmbedded
from semblend.quality.processes import lab_of_process, run_processes
from semblend.quality.redteam.attempts import Attempt, add_attempts, read_attempts
from semblend.quality.redteam.engines import AttackedEngine
from semblend.quality.redteam.finds import Findings, findings_of
from semblend.quality.redteam.regressions import regressions
from semblend.quality.redteam.search import Search
from semblend.quality.seam import MeasuredEngine

MOST_TRIES = 40
"""Tries per wanted item. Without it, a model that answers hardly anything would never finish."""
SEED_OF_PROCESS = 7919


@dataclass(frozen=True, slots=True, kw_only=True)
class RedTeamJob:
    """What to attack, and for how long."""

    model: str
    device: str
    dtype: str
    policy: str
    seed: int
    folder: Path
    drift: Path | None = None
    """The model's depth-drift table, for policies that shift depths."""
    items: int | None = None
    """Valid items required, over all processes."""
    seconds: float | None = None
    processes: int = 1
    unaided: bool = False
    """Whether to start from nothing rather than around known finds."""

    @property
    def stem(self) -> str:
        """Stem of the attempt files. Another policy, seed or number format is another search."""
        said = hashlib.sha256(f"{self.policy} {self.dtype}".encode()).hexdigest()[:8]
        return f"redteam-{self.seed}-{said}" + ("-unaided" if self.unaided else "")

    @property
    def files(self) -> list[Path]:
        """The existing attempt files."""
        return sorted(self.folder.glob(f"{self.stem}-[0-9]*.jsonl"))

    @property
    def attempts(self) -> list[Attempt]:
        """All attempts so far."""
        return read_attempts(self.files)

    @property
    def findings(self) -> Findings:
        """The findings so far."""
        return findings_of(self.attempts, policy=self.policy, seed=self.seed)


Tell = Callable[[RedTeamJob], None]


def attack(engine: MeasuredEngine, job: RedTeamJob, tell: Tell = lambda job: None) -> None:
    """Search in this process with an engine that is there."""
    _search(engine, job, 0, tell)


def attack_in_processes(job: RedTeamJob, tell: Tell = lambda job: None) -> None:
    """Search in several processes, each with different words.

    Raises
    ------
    StorageError
        If a process failed. The attempts of the others are kept.
    """
    run_processes(
        _process, job, processes=job.processes, kept=job.folder, waiting=lambda: tell(job)
    )


def _process(job: RedTeamJob, at: int) -> None:
    drift = job.drift if policy_from_spec(job.policy).shifts_depth else None
    with lab_of_process(job.model, device=job.device, dtype=job.dtype, drift=drift) as lab:
        _search(MeasuredEmbedded(lab), job, at, lambda job: None)


def _search(engine: MeasuredEngine, job: RedTeamJob, at: int, tell: Tell) -> None:
    path = job.folder / f"{job.stem}-{at}.jsonl"
    search = Search(
        engine=AttackedEngine(engine=engine, policy=job.policy),
        seed=job.seed + at * SEED_OF_PROCESS,
        known=[] if job.unaided else [one.structure for one in regressions()],
        attempts=read_attempts([path]) if path.exists() else [],
    )
    items = None if job.items is None else -(-job.items // job.processes)

    def note(attempt: Attempt) -> None:
        add_attempts(path, [attempt])
        tell(job)

    search.run(
        seconds=job.seconds,
        items=items,
        tries=None if items is None else MOST_TRIES * items,
        tell=note,
    )
