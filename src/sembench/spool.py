"""Keeps rows on disk as they are measured, so that any run can be interrupted and resumed.

A spool lies beside the output file: one line that identifies the run, then one line per
row. At the end the output is assembled from it and moved into place, so a file at the
output path is always complete. An interrupted run leaves its spool behind, and `resume`
continues it if the identity matches.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from sembench.errors import ResultError, UsageError
from sembench.json_text import parse_json

SPOOL_SUFFIX = ".partial.jsonl"


def spool_path(output: Path) -> Path:
    return output.with_name(output.name + SPOOL_SUFFIX)


def resumed_run_id(output: Path) -> str | None:
    """The run id in an interrupted run's spool beside `output`, if there is one."""
    try:
        with spool_path(output).open(encoding="utf-8") as stream:
            found = parse_json(stream.readline()).get("run_id")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None


class Spool:
    """The rows of one run until :meth:`finish`; add rows inside a with block."""

    def __init__(self, output: Path, *, identity: Mapping[str, Any], resume: bool = False) -> None:
        self.output = output
        self.path = spool_path(output)
        self._identity = dict(identity)
        self._resume = resume
        self._stream: TextIO | None = None

    def __enter__(self) -> Self:
        if self.output.is_dir():
            raise UsageError(f"--output: {self.output} is a folder; expected a file")
        try:
            self.output.parent.mkdir(parents=True, exist_ok=True)
            if self._resume and self.path.exists():
                self._take_up()
                self._stream = self.path.open("a", encoding="utf-8")
            else:
                self._stream = self.path.open("w", encoding="utf-8")
                self._stream.write(dump(self._identity) + "\n")
                self._stream.flush()
        except OSError as error:
            raise UsageError(f"--output: {self.path}: {error.strerror or error}") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._stream is not None:
            self._stream.close()

    def add(self, row: Mapping[str, Any]) -> None:
        if self._stream is None:
            raise ResultError(f"{self.path}: rows can be added only inside the with block")
        self._stream.write(dump(row) + "\n")
        self._stream.flush()

    def rows(self) -> Iterator[dict[str, Any]]:
        """Read all rows so far back from disk, one by one."""
        for line in self._lines():
            yield parse_json(line)

    def finish(self, head: Mapping[str, Any]) -> None:
        """Write the output (`head`, with the rows under ``requests``) and delete the spool."""
        unfinished = self.output.with_name(self.output.name + ".unfinished")
        with unfinished.open("w", encoding="utf-8") as stream:
            text = dump(head, indent=2)
            stream.write(text[: text.rindex("}")].rstrip() + ',\n  "requests": [')
            separator = "\n    "
            for line in self._lines():
                stream.write(separator + line)
                separator = ",\n    "
            stream.write("\n  ]\n}\n")
        os.replace(unfinished, self.output)
        self.path.unlink()

    def _lines(self) -> Iterator[str]:
        with self.path.open(encoding="utf-8") as stream:
            next(stream, None)
            for line in stream:
                if line.endswith("\n"):
                    yield line[:-1]

    def _take_up(self) -> None:
        with self.path.open("r+b") as stream:
            whole = stream.read().rfind(b"\n") + 1
            # The interruption cut this row short; measure it again.
            stream.truncate(whole)
        try:
            with self.path.open(encoding="utf-8") as stream:
                found = parse_json(stream.readline() or "{}")
        except ValueError as error:
            raise UsageError(
                f"--resume: {self.path} is not the spool of an interrupted run"
            ) from error
        if found != self._identity:
            raise UsageError(
                f"--resume: {self.path} belongs to another run ({found}); "
                f"this one is {self._identity}. Pass its --run-id, or another --output"
            )


def dump(value: Any, *, indent: int | None = None) -> str:
    """Dump a result as JSON; refuse numbers JSON cannot represent."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    except ValueError as error:
        raise ResultError(f"a result has a value JSON cannot represent ({error})") from error
