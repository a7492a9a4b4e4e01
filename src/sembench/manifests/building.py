"""Builds manifests: records in, items out, one at a time.

Makes two passes over the source: the first keeps a small sample of records as companions
for transforms that need an unrelated document, the second yields items. The sample bounds
the memory, whatever the number of items.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from sembench.errors import SourceError, TransformError
from sembench.ids import SEPARATOR, item_id
from sembench.manifests.spec import BuildSpec, RecordChoice
from sembench.model import ManifestItem
from sembench.profiles import Source, SourceRecord, load_profile
from sembench.transforms import Toolbox, Transform, transforms_named
from sembench.transforms.negative_control import NegativeControl

COMPANIONS_PER_DATASET = 24
LONGEST_COMPANION_CHARS = 40_000
"""Two very long texts in one language share some runs of words by chance."""


@dataclass(slots=True)
class BuildReport:
    """What a build did; filled in while it runs."""

    records: int = 0
    items: Counter[str] = field(default_factory=Counter)
    """Items by transform."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Records that could not be transformed, by transform."""
    reasons: dict[str, str] = field(default_factory=dict)
    """The first reason for a skip, by transform."""


def source_for(spec: BuildSpec, *, data_dir: Path | None = None) -> Source:
    bounded = spec.profile == "synthetic-v1" or spec.sample is RecordChoice.FIRST
    return load_profile(
        spec.profile,
        datasets=spec.datasets,
        data_dir=data_dir,
        hf_revision=spec.hf_revision,
        records_per_dataset=spec.max_items_per_dataset if bounded else None,
        seed=spec.seed,
    )


def build_items(spec: BuildSpec, source: Source, report: BuildReport) -> Iterator[ManifestItem]:
    """Yield the items of a manifest in order: record by record, transform by transform.

    Records that a transform cannot shape are skipped and counted in `report`.
    """
    transforms = transforms_named(spec.transforms)
    chosen = _choose(spec, source)
    needs_companions = any(isinstance(transform, NegativeControl) for transform in transforms)
    companions = _companions(spec, source, chosen) if needs_companions else []
    for record in _records(spec, source, chosen):
        report.records += 1
        for transform in transforms:
            tools = _tools(spec, source, record, transform, companions)
            try:
                item = transform.apply(record, tools)
                transform.check(item)
            except TransformError as error:
                report.skipped[transform.name] += 1
                report.reasons.setdefault(transform.name, str(error))
                continue
            report.items[transform.name] += 1
            yield item


def _tools(
    spec: BuildSpec,
    source: Source,
    record: SourceRecord,
    transform: Transform,
    companions: list[SourceRecord],
) -> Toolbox:
    identity = item_id(record.dataset, record.source_id, transform.name)
    random = Random(f"sembench/{spec.seed}/{identity}")
    if companions and isinstance(transform, NegativeControl):
        companions = random.sample(companions, len(companions))
    return Toolbox(
        random=random,
        max_segments=spec.max_segments,
        min_segment_chars=spec.min_segment_chars,
        companions=companions,
        profile=source.profile,
    )


_Key = tuple[str, str]


def _rank(spec: BuildSpec, record: SourceRecord, purpose: str) -> int:
    text = SEPARATOR.join([str(spec.seed), purpose, record.dataset, record.source_id])
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")


def _choose(spec: BuildSpec, source: Source) -> set[_Key] | None:
    """Keys of the sampled records; None if the first records are taken."""
    limit = spec.max_items_per_dataset
    if spec.sample is RecordChoice.FIRST or limit is None:
        return None
    ranked: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for record in source.records():
        heap = ranked[record.dataset]
        entry = (-_rank(spec, record, "sample"), record.source_id)
        if len(heap) < limit:
            heapq.heappush(heap, entry)
        else:
            heapq.heappushpop(heap, entry)
    return {(dataset, source_id) for dataset, heap in ranked.items() for _, source_id in heap}


def _records(spec: BuildSpec, source: Source, chosen: set[_Key] | None) -> Iterator[SourceRecord]:
    taken: Counter[str] = Counter()
    seen: set[_Key] = set()
    for record in source.records():
        key = (record.dataset, record.source_id)
        if chosen is not None and key not in chosen:
            continue
        limit = spec.max_items_per_dataset
        if limit is not None and taken[record.dataset] >= limit:
            continue
        if key in seen:
            raise SourceError(
                f"dataset {record.dataset!r} has two records with the id {record.source_id!r}"
            )
        seen.add(key)
        taken[record.dataset] += 1
        yield record


def _companions(spec: BuildSpec, source: Source, chosen: set[_Key] | None) -> list[SourceRecord]:
    heaps: dict[str, list[tuple[int, str, SourceRecord]]] = defaultdict(list)
    for record in _records(spec, source, chosen):
        if len(record.context) > LONGEST_COMPANION_CHARS:
            continue
        heap = heaps[record.dataset]
        entry = (-_rank(spec, record, "companion"), record.source_id, record)
        if len(heap) < COMPANIONS_PER_DATASET:
            heapq.heappush(heap, entry)
        else:
            heapq.heappushpop(heap, entry)
    return [
        record
        for dataset in sorted(heaps)
        for _, _, record in sorted(heaps[dataset], key=lambda entry: entry[:2])
    ]
