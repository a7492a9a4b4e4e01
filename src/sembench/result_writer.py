"""Writes a result row by row, so that a run of any length holds no rows in memory.

Aggregates are updated as rows arrive. The spool keeps the rows until the run ends and
lets an interrupted run resume.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sembench.metrics import Aggregate
from sembench.provenance import utc_now
from sembench.results import RESULT_VERSION, RequestRow, RunMetadata
from sembench.spool import Spool


class ResultWriter:
    """Holds the aggregates of one run until :meth:`finish`."""

    def __init__(
        self,
        path: Path,
        *,
        run: RunMetadata,
        config: Mapping[str, Any],
        environment: Mapping[str, Any],
        resume: bool = False,
    ) -> None:
        self.run = run
        self.config = dict(config)
        self.environment = dict(environment)
        self.aggregate = Aggregate()
        self.by_transform: dict[str, Aggregate] = {}
        self._spool = Spool(path, identity=run.identity(), resume=resume)
        self._done: set[tuple[str | None, str]] = set()

    def __enter__(self) -> Self:
        self._spool.__enter__()
        for row in self.rows():
            self._count(row)
            self._done.add((row.arm, row.item_id))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._spool.__exit__(kind, error, traceback)

    def is_done(self, item_id: str, arm: str | None = None) -> bool:
        """Whether a row of this item (and arm) exists from before a resume."""
        return (arm, item_id) in self._done

    @property
    def resumed_rows(self) -> int:
        """How many rows came from the interrupted run."""
        return len(self._done)

    def add(self, row: RequestRow) -> None:
        self._spool.add(row.to_dict())
        self._count(row)

    def rows(self) -> Iterator[RequestRow]:
        """All rows so far, read back from disk one by one."""
        for row in self._spool.rows():
            yield RequestRow.from_dict(row, where=str(self._spool.path))

    def finish(
        self, *, engine: Mapping[str, Any] | None = None, paired: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Write the result file and return everything in it except the rows."""
        head = {
            "result_version": RESULT_VERSION,
            "created_at_utc": utc_now(),
            "run": self.run.to_dict(),
            "config": self.config,
            "environment": self.environment,
            "engine": None if engine is None else dict(engine),
            "aggregate": self.aggregate.to_dict(),
            "by_transform": {
                name: self.by_transform[name].to_dict() for name in sorted(self.by_transform)
            },
            "paired": None if paired is None else dict(paired),
        }
        self._spool.finish(head)
        return head

    def _count(self, row: RequestRow) -> None:
        self.aggregate.add(row)
        self.by_transform.setdefault(row.transform, Aggregate()).add(row)
