"""Rows of published datasets: from JSONL, CSV and Parquet files, or from the hub."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from sembench.errors import MissingExtraError, SourceError
from sembench.profiles.local_files import SUFFIXES, json_objects
from sembench.profiles.streamed import load_streamed, streamed_rows

FILES = (*SUFFIXES, ".csv", ".parquet")
Row = tuple[str, Mapping[str, Any]]
"""Where it stands, and its fields."""


def published_files(folder: Path, name: str, *, split: str) -> list[Path]:
    """The files of one dataset: `folder/name.*`, those below `folder/name`, or `folder` itself.

    Of a copy of the hub's repository, which holds every split, the files of `split` are taken.
    """
    if folder.is_file():
        return [folder] if folder.name.split(".")[0] == name else []
    if not folder.is_dir():
        raise SourceError(f"--data-dir: {folder} is not a file or a folder")
    beside = [folder / f"{name}{suffix}" for suffix in FILES]
    if single := [file for file in beside if file.is_file()]:
        return single[:1]
    inside = folder if folder.name == name else folder / name
    found = sorted(file for file in inside.rglob("*") if file.name.endswith(FILES))
    return [file for file in found if split in file.name] or found


def file_rows(files: list[Path]) -> Iterator[Row]:
    """The rows of some files, one at a time."""
    for file in files:
        if file.suffix == ".parquet":
            yield from _parquet_rows(file)
        elif file.suffix == ".csv":
            yield from _csv_rows(file)
        else:
            yield from json_objects(file)


def hub_rows(name: str, *, config: str | None, split: str, revision: str | None) -> Iterator[Row]:
    """The rows of a dataset on the hub, streamed."""
    rows = load_streamed(name, name, config, split=split, revision=revision)
    for number, row in enumerate(streamed_rows(rows, name)):
        yield f"{name}[{number}]", row


def _csv_rows(file: Path) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)  # a field is a whole document
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            for number, row in enumerate(csv.DictReader(stream), start=2):
                yield f"{file}:{number}", row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{file}: cannot be read ({error})") from error


def _parquet_rows(file: Path) -> Iterator[Row]:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtraError(
            package="pyarrow", extra="longbench", purpose=f"reading {file}"
        ) from error
    try:
        number = 0
        for batch in parquet.ParquetFile(file).iter_batches(batch_size=64):
            for row in batch.to_pylist():
                yield f"{file}[{number}]", row
                number += 1
    except Exception as error:  # damaged files raise many kinds, none of them public
        raise SourceError(f"{file}: cannot be read ({type(error).__name__}: {error})") from error
