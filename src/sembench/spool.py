"""Rows on disk as they are measured, so that a run of any length can be stopped and taken up.

A spool lies beside the output file: one line that says whose it is, then one line a
row. The output is put together from it at the end and moved into place, so that a
file at the output path is always complete. A stopped run leaves its spool; `resume`
takes it up, and only for the same identity.
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
    """Where the spool of an output file lies."""
    return output.with_name(output.name + SPOOL_SUFFIX)


def resumed_run_id(output: Path) -> str | None:
    """The run id of a stopped run's spool beside `output`, where there is one."""
    try:
        with spool_path(output).open(encoding="utf-8") as stream:
            found = parse_json(stream.readline()).get("run_id")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None


class Spool:
    """The rows of one run until :meth:`finish`; as a context it is open for adding."""

    def __init__(self, output: Path, *, identity: Mapping[str, Any], resume: bool = False) -> None:
        self.output = output
        self.path = spool_path(output)
        self._identity = dict(identity)
        self._resume = resume
        self._stream: TextIO | None = None

    def __enter__(self) -> Self:
        if self.output.is_dir():
            raise UsageError(f"--output: {self.output} is a folder; a file expected")
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
        """Write a row to disk."""
        if self._stream is None:
            raise ResultError(f"{self.path}: rows are taken only inside the with block")
        self._stream.write(dump(row) + "\n")
        self._stream.flush()

    def rows(self) -> Iterator[dict[str, Any]]:
        """All rows so far, read back from disk one by one."""
        for line in self._lines():
            yield parse_json(line)

    def finish(self, head: Mapping[str, Any]) -> None:
        """Write the output, `head` with the rows under ``requests``, and let the spool go."""
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
            # A row cut short by the stop is measured again.
            stream.truncate(whole)
        try:
            with self.path.open(encoding="utf-8") as stream:
                found = parse_json(stream.readline() or "{}")
        except ValueError as error:
            raise UsageError(f"--resume: {self.path} does not begin as a stopped run's") from error
        if found != self._identity:
            raise UsageError(
                f"--resume: {self.path} belongs to another run ({found}); "
                f"this one is {self._identity}. Give its --run-id, or another --output"
            )


def dump(value: Any, *, indent: int | None = None) -> str:
    """JSON of a result; numbers it cannot carry are refused."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    except ValueError as error:
        raise ResultError(f"a result holds a value JSON cannot carry ({error})") from error
