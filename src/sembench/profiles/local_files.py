"""LongBench-format JSONL from a local file or folder, plain or compressed.

Reads both the fields of LongBench v1 (``_id, input, context, answers, length, dataset,
language``) and of v2 (``question, choice_A … choice_D, answer, domain, length``).
"""

from __future__ import annotations

import lzma
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sembench.errors import SourceError
from sembench.json_text import parse_json
from sembench.manifests.files import open_text
from sembench.model import is_text
from sembench.profiles.base import SourceRecord, length_band

SUFFIXES = (".jsonl", ".jsonl.xz", ".jsonl.gz")
_CHOICES = ("A", "B", "C", "D")


def data_files(path: Path) -> list[Path]:
    """The data files at a path: the file itself, or those in the folder, by name."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise SourceError(f"--data-dir: {path} is not a file or a folder")
    found = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES))
    if not found:
        raise SourceError(f"--data-dir: {path} has no file ending in {', '.join(SUFFIXES)}")
    return found


class LocalFiles:
    """Records of JSONL files on disk, read again each time, never all in memory."""

    def __init__(self, *, profile: str, path: Path, datasets: tuple[str, ...] = ()) -> None:
        self._profile = profile
        self._files = data_files(path)
        self._datasets = datasets

    @property
    def profile(self) -> str:
        """The profile name stored in the manifest."""
        return self._profile

    def records(self) -> Iterator[SourceRecord]:
        """Yield all records of the chosen datasets, in file order."""
        counts: Counter[str] = Counter()
        for file in self._files:
            yield from self._records_of(file, counts)
        missing = [name for name in self._datasets if not counts[name]]
        if missing:
            raise SourceError(
                f"--datasets: {missing[0]!r} is not in {', '.join(map(str, self._files))}"
            )

    def _records_of(self, file: Path, counts: Counter[str]) -> Iterator[SourceRecord]:
        default = file.name.split(".")[0]
        for where, data in json_objects(file):
            dataset = str(data.get("dataset") or default)
            if self._datasets and dataset not in self._datasets:
                continue
            yield to_record(data, dataset=dataset, index=counts[dataset], where=where)
            counts[dataset] += 1


def json_objects(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects of a JSONL file, each with where it stands."""
    try:
        with open_text(file) as stream:
            for number, line in enumerate(stream, start=1):
                if not line.strip():
                    continue
                where = f"{file}:{number}"
                try:
                    data = parse_json(line)
                except ValueError as error:
                    raise SourceError(f"{where}: not JSON ({error})") from error
                if not isinstance(data, dict):
                    raise SourceError(f"{where}: expected an object")
                yield where, data
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise SourceError(f"{file}: cannot be read ({error})") from error


def to_record(data: Mapping[str, Any], *, dataset: str, index: int, where: str) -> SourceRecord:
    """Convert a LongBench object of version 1 or 2.

    Raises
    ------
    SourceError
        Naming the field that is missing or has the wrong type.
    """
    context = data.get("context")
    if not isinstance(context, str) or not context.strip():
        raise SourceError(f"{where}.context: expected a non-empty text")
    question, answers = _question(data, where)
    for name, text in (("context", context), ("input", question), ("answers", "".join(answers))):
        if not is_text(text):
            raise SourceError(f"{where}.{name}: has half a surrogate pair, which is no character")
    words = len(context.split())
    length = data.get("length")
    metadata: dict[str, Any] = {
        "length": length if isinstance(length, int) else words,
        "length_band": length if isinstance(length, str) else length_band(words),
    }
    for name in ("domain", "sub_domain", "difficulty", "language", "title"):
        if isinstance(data.get(name), str):
            metadata[name] = data[name]
    return SourceRecord(
        dataset=dataset,
        source_id=str(data.get("_id") or data.get("id") or f"{dataset}-{index}"),
        context=context,
        input=question,
        answers=answers,
        source_index=index,
        metadata=metadata,
    )


def _question(data: Mapping[str, Any], where: str) -> tuple[str, tuple[str, ...]]:
    if "question" in data:
        choices = {name: str(data.get(f"choice_{name}", "")) for name in _CHOICES}
        lines = [f"({name}) {text}" for name, text in choices.items() if text]
        answer = choices.get(str(data.get("answer", "")), "")
        return "\n".join([str(data["question"]), *lines]), _texts([answer])
    question, answers = data.get("input", ""), data.get("answers", [])
    if not isinstance(question, str):
        raise SourceError(f"{where}.input: expected a string, got {question!r}")
    if isinstance(answers, str) or not isinstance(answers, Iterable):
        raise SourceError(f"{where}.answers: expected a list of strings, got {answers!r}")
    return question, _texts(answers)


def _texts(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(str(value) for value in values if str(value).strip())
