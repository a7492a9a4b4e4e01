"""Writes a result row by row, so that a run of any length holds no rows in memory.

Rows go to a spool beside the output as they are measured; aggregates are kept as
they come; the result file is put together at the end and moved into place, so
that a file at the output path is always complete. A run that was stopped leaves
its spool, and `resume` takes it up: only for the same run identity.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from sembench.errors import ResultError, UsageError
from sembench.metrics import Aggregate
from sembench.provenance import utc_now
from sembench.results import RESULT_VERSION, RequestRow, RunMetadata

SPOOL_SUFFIX = ".partial.jsonl"


class ResultWriter:
    """Owns the spool and the aggregates of one run until :meth:`finish`."""

    def __init__(
        self,
        path: Path,
        *,
        run: RunMetadata,
        config: Mapping[str, Any],
        environment: Mapping[str, Any],
        resume: bool = False,
    ) -> None:
        self.path = path
        self.run = run
        self.config = dict(config)
        self.environment = dict(environment)
        self.aggregate = Aggregate()
        self.by_transform: dict[str, Aggregate] = {}
        self._spool_path = path.with_name(path.name + SPOOL_SUFFIX)
        self._resume = resume
        self._spool: TextIO | None = None
        self._done: set[tuple[str | None, str]] = set()

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._resume and self._spool_path.exists():
            self._take_up()
            self._spool = self._spool_path.open("a", encoding="utf-8")
        else:
            self._spool = self._spool_path.open("w", encoding="utf-8")
            self._spool.write(_dump(self._identity()) + "\n")
            self._spool.flush()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._spool is not None:
            self._spool.close()

    def is_done(self, item_id: str, arm: str | None = None) -> bool:
        """Whether a row of this item (and arm) is already there, from before a resume."""
        return (arm, item_id) in self._done

    @property
    def resumed_rows(self) -> int:
        """How many rows were taken up from a stopped run."""
        return len(self._done)

    def add(self, row: RequestRow) -> None:
        """Write a row to disk and count it."""
        if self._spool is None:
            raise ResultError("a ResultWriter takes rows only inside its with block")
        self._spool.write(_dump(row.to_dict()) + "\n")
        self._spool.flush()
        self._count(row)

    def rows(self) -> Iterator[RequestRow]:
        """All rows so far, read back from disk one by one."""
        for line in self._row_lines():
            yield RequestRow.from_dict(json.loads(line), where=str(self._spool_path))

    def finish(
        self, *, engine: Mapping[str, Any] | None = None, paired: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Write the result file and return everything in it but the rows."""
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
        unfinished = self.path.with_name(self.path.name + ".unfinished")
        with unfinished.open("w", encoding="utf-8") as stream:
            text = _dump(head, indent=2)
            stream.write(text[: text.rindex("}")].rstrip() + ',\n  "requests": [')
            separator = "\n    "
            for line in self._row_lines():
                stream.write(separator + line)
                separator = ",\n    "
            stream.write("\n  ]\n}\n")
        os.replace(unfinished, self.path)
        self._spool_path.unlink()
        return head

    def _count(self, row: RequestRow) -> None:
        self.aggregate.add(row)
        self.by_transform.setdefault(row.transform, Aggregate()).add(row)

    def _row_lines(self) -> Iterator[str]:
        with self._spool_path.open(encoding="utf-8") as stream:
            next(stream, None)
            for line in stream:
                if line.endswith("\n"):
                    yield line[:-1]

    def _identity(self) -> dict[str, Any]:
        return {
            "run_id": self.run.run_id,
            "engine": self.run.engine,
            "manifest_sha256": self.run.manifest_sha256,
        }

    def _take_up(self) -> None:
        with self._spool_path.open("r+b") as stream:
            whole = stream.read().rfind(b"\n") + 1
            # A row cut short by the stop is measured again.
            stream.truncate(whole)
        with self._spool_path.open(encoding="utf-8") as stream:
            found = json.loads(stream.readline() or "{}")
        if found != self._identity():
            raise UsageError(
                f"--resume: {self._spool_path} belongs to another run ({found}); "
                f"this one is {self._identity()}. Give its --run-id, or another --output"
            )
        for row in self.rows():
            self._count(row)
            self._done.add((row.arm, row.item_id))


def _dump(value: Any, *, indent: int | None = None) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    except ValueError as error:
        raise ResultError(f"a result holds a value JSON cannot carry ({error})") from error
