"""LongBench from the Hugging Face hub, through the ``datasets`` package, streamed.

LongBench v1 is published as one archive of JSONL files plus a loading script. ``datasets``
no longer runs scripts, so this reads the files in the archive directly.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from sembench.profiles.base import SourceRecord
from sembench.profiles.local_files import to_record
from sembench.profiles.streamed import load_streamed, streamed_rows

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
            rows = load_streamed(
                f"dataset {dataset!r} of LongBench v1",
                "json",
                data_files=f"zip://data/{dataset}.jsonl::{self._archive}",
            )
            for index, row in enumerate(islice(streamed_rows(rows, dataset), self._limit)):
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
        rows = load_streamed("LongBench v2", self._repository, revision=self._revision)
        index = 0
        for row in streamed_rows(rows, V2_DATASET):
            if self._domains and row.get("domain") not in self._domains:
                continue
            yield to_record(row, dataset=V2_DATASET, index=index, where=f"{V2_DATASET}[{index}]")
            index += 1
