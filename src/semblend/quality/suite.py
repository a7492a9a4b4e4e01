"""What is measured, and the resumable file of results: one JSON line per record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semblend.core.errors import SerialisationError
from semblend.quality import dialogue, long_talk
from semblend.quality.items import Case, to_item
from semblend.quality.lab import Lab
from semblend.quality.measure import Record, measure
from semblend.quality.measured_prompts import real_cases
from semblend.quality.texts import controls, edited, workloads

Progress = Callable[[str, int, int], None]
"""(workload, items done, items in total)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Items of one workload under some policies."""

    workload: str
    items: int
    specs: tuple[str, ...]
    lengths: tuple[int, ...] = workloads.LENGTHS
    first: int = 0
    """Number of the first item. Cells of one workload may follow each other."""

    data: str | None = None
    """Source of real text."""

    def cases(self, seed: int) -> Iterator[Case]:
        """The cell's items. Lengths alternate."""
        if self.data is not None:
            yield from real_cases(self.data, seed=seed, items=self.items)
            return
        make = workloads.WORKLOADS[self.workload]
        for number in range(self.first, self.first + self.items):
            yield make(seed, number, self.lengths[number % len(self.lengths)])


KINDS_OF_EDITS = tuple(f"edited_{kind}" for kind in edited.EDITS)
ON_REQUEST = (dialogue.DIALOGUE, long_talk.TEN_TURNS)
"""Workloads that a certificate rests on only if it was asked for."""
KINDS_OF_CONTROLS = tuple(f"control_{kind}" for kind in controls.CONTROLS)


class Records:
    """A file of records. Lines cut short by a crash are dropped on reading."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._done: set[tuple[str, str]] = set()
        if path.exists():
            self._done = {(r.case_id, r.policy) for r in read_records([path])}

    def leave_out(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Treat these (case, policy) pairs as measured, because other files hold them."""
        self._done.update((case, policy) for case, policy in pairs)

    def missing(self, case: Case, specs: Sequence[str]) -> list[str]:
        """Policies without a record for this case."""
        return [spec for spec in specs if (case.case_id, spec) not in self._done]

    def add(self, records: Sequence[Record]) -> None:
        """Append, so that existing lines survive a crash."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            for record in records:
                file.write(json.dumps(record.to_dict(), sort_keys=True) + "\n")


def read_records(paths: Sequence[Path]) -> list[Record]:
    """Read all records in some files, keeping the first of each (case, policy).

    Raises
    ------
    SerialisationError
        If a complete line is not a record.
    """
    found: dict[tuple[str, str], Record] = {}
    for path in paths:
        text = path.read_text(encoding="utf-8")
        for number, line in enumerate(text.split("\n")[:-1], 1):
            try:
                data: dict[str, Any] = json.loads(line)
                record = Record(**data)
            except (TypeError, ValueError) as error:
                raise SerialisationError(f"{path}:{number}: not a record: {error}") from error
            found.setdefault((record.case_id, record.policy), record)
    return list(found.values())


def run_cells(
    lab: Lab,
    cells: Sequence[Cell],
    records: Records,
    *,
    seed: int,
    shard: tuple[int, int] = (0, 1),
    progress: Progress = lambda workload, done, total: None,
) -> None:
    """Measure what the file does not hold yet. Shard (i, n) takes every n-th item."""
    part, parts = shard
    for turn, cell in enumerate(cells):
        for done, case in enumerate(cell.cases(seed)):
            progress(cell.workload, done, cell.items)
            # Lengths alternate, so a shard gets complete rounds. Rounds left over go to different
            # shards in each cell, so that all shards have equal work.
            if (case.number // len(cell.lengths) + 2 * turn) % parts != part:
                continue
            specs = records.missing(case, cell.specs)
            if specs:
                records.add(measure(lab, to_item(case, lab.model.tokenizer), specs))
        progress(cell.workload, cell.items, cell.items)
