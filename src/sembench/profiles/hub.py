"""LongBench from the Hugging Face hub, through the ``datasets`` package, streamed.

LongBench v1 is published as one archive of JSONL files plus a loading script. ``datasets``
no longer runs scripts, so this reads the files in the archive directly.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from typing import Any

from sembench.errors import MissingExtraError, SourceError
from sembench.profiles.base import SourceRecord
from sembench.profiles.local_files import to_record

LONGBENCH_V1 = "zai-org/LongBench"
LONGBENCH_V2 = "zai-org/LongBench-v2"
V1_DATASETS = (
    "narrativeqa",
    "qasper",
    "multifieldqa_en",
    "hotpotqa",
    "2wikimqa",
    "musique",
    "gov_report",
    "qmsum",
    "multi_news",
    "trec",
    "triviaqa",
    "samsum",
    "passage_count",
    "passage_retrieval_en",
    "lcc",
    "repobench-p",
)
V2_DATASET = "longbench-v2"


def v1_archive(revision: str | None) -> str:
    """The URL of the LongBench v1 archive at `revision` (a commit, tag or branch)."""
    return f"hf://datasets/{LONGBENCH_V1}@{revision or 'main'}/data.zip"


class HubLongBenchV1:
    """LongBench v1: one JSONL file per dataset in the published archive."""

    profile = "longbench-v1"

    def __init__(
        self,
        *,
        datasets: tuple[str, ...] = (),
        revision: str | None = None,
        limit: int | None = None,
        archive: str | None = None,
    ) -> None:
        self._datasets = datasets or V1_DATASETS
        self._limit = limit
        self._archive = archive or v1_archive(revision)

    def records(self) -> Iterator[SourceRecord]:
        """Yield the first `limit` records of each chosen dataset."""
        for dataset in self._datasets:
            rows = _load(
                f"dataset {dataset!r} of LongBench v1",
                "json",
                data_files=f"zip://data/{dataset}.jsonl::{self._archive}",
            )
            for index, row in enumerate(islice(_rows(rows, dataset), self._limit)):
                yield to_record(row, dataset=dataset, index=index, where=f"{dataset}[{index}]")


class HubLongBenchV2:
    """LongBench v2: multiple-choice questions over long documents; `datasets` selects domains."""

    profile = "longbench-v2"

    def __init__(
        self,
        *,
        datasets: tuple[str, ...] = (),
        revision: str | None = None,
        repository: str = LONGBENCH_V2,
    ) -> None:
        self._domains = datasets
        self._revision = revision
        self._repository = repository

    def records(self) -> Iterator[SourceRecord]:
        """All records (of the chosen domains), in published order."""
        rows = _load("LongBench v2", self._repository, revision=self._revision)
        index = 0
        for row in _rows(rows, V2_DATASET):
            if self._domains and row.get("domain") not in self._domains:
                continue
            yield to_record(row, dataset=V2_DATASET, index=index, where=f"{V2_DATASET}[{index}]")
            index += 1


def _load(what: str, path: str, **options: Any) -> Any:
    try:
        load_dataset = import_module("datasets").load_dataset
    except ImportError as error:
        raise MissingExtraError(
            package="datasets", extra="benchmarks", purpose="LongBench from the hub"
        ) from error
    try:
        return load_dataset(path, split="train", streaming=True, **options)
    except Exception as error:  # network, hub, archive and parse errors are many kinds
        raise _unreadable(what, error) from error


def _rows(rows: Any, what: str) -> Iterator[dict[str, Any]]:
    try:
        yield from rows
    except SourceError:
        raise
    except Exception as error:  # a streamed dataset fails where it is read
        raise _unreadable(what, error) from error


def _unreadable(what: str, error: Exception) -> SourceError:
    return SourceError(
        f"{what} cannot be read from the hub ({type(error).__name__}: {error}). Without a network, "
        f"give --data-dir a file or folder of LongBench-format JSONL"
    )
