"""Profiles: sources of a manifest's records, by name."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from sembench import plugins
from sembench.errors import UsageError
from sembench.plugins import load_plugin
from sembench.profiles.base import Source, SourceRecord
from sembench.profiles.hub import HubLongBenchV1, HubLongBenchV2
from sembench.profiles.local_files import LocalFiles
from sembench.profiles.published import PublishedData
from sembench.profiles.synthetic import Synthetic

__all__ = ["PROFILES", "Source", "SourceRecord", "load_profile"]

PROFILES = {
    "fixture": "12 generated documents, identical everywhere",
    "synthetic-v1": "any number of generated documents, by seed",
    "longbench-v1": "LongBench from the hub or from files",
    "longbench-v2": "LongBench v2 from the hub or from files",
    "published": "XSum, CNN/DailyMail, SAMSum and others (`sembench list datasets`)",
}
"""Profiles that manifests are built from, with descriptions."""
FIXTURE_RECORDS = 3
FIXTURE_SEED = 20260615
"""The fixture is identical everywhere: `--seed` does not affect its documents."""


def load_profile(
    name: str,
    *,
    datasets: tuple[str, ...] = (),
    data_dir: Path | None = None,
    hf_revision: str | None = None,
    records_per_dataset: int | None = None,
    seed: int = 0,
) -> Source:
    """The source of profile `name`.

    A source that is generated or read over a network stops after
    `records_per_dataset`; a source on disk yields everything it has.

    Raises
    ------
    UsageError
        If there is no such profile, or a flag does not apply to it.
    """
    if name in ("agent", "chat"):
        raise UsageError(
            f"--profile: {name} is a multi-turn profile and cannot become a manifest; "
            f"play it with `sembench run-turns-offline --profile {name}`"
        )
    if name not in PROFILES:
        made = load_plugin(plugins.PROFILES, name)
        if made is None:
            raise UsageError(f"--profile: {name!r} is not one of {', '.join(PROFILES)}")
        return cast(
            "Source",
            made(
                datasets=datasets,
                data_dir=data_dir,
                hf_revision=hf_revision,
                records_per_dataset=records_per_dataset,
                seed=seed,
            ),
        )
    generated = name in ("fixture", "synthetic-v1")
    if generated and (data_dir is not None or hf_revision is not None):
        flag = "--data-dir" if data_dir is not None else "--hf-revision"
        raise UsageError(f"{flag}: profile {name} is generated and reads no data")
    if data_dir is not None and hf_revision is not None:
        raise UsageError("--hf-revision: --data-dir reads local files, which have no revision")
    if name == "fixture":
        return Synthetic(
            profile=name, datasets=datasets, records_per_dataset=FIXTURE_RECORDS, seed=FIXTURE_SEED
        )
    if name == "synthetic-v1":
        return Synthetic(datasets=datasets, records_per_dataset=records_per_dataset, seed=seed)
    if name == "published":
        return PublishedData(
            datasets=datasets, data_dir=data_dir, revision=hf_revision, limit=records_per_dataset
        )
    if data_dir is not None:
        return LocalFiles(profile=name, path=data_dir, datasets=datasets)
    if name == "longbench-v1":
        return HubLongBenchV1(datasets=datasets, revision=hf_revision, limit=records_per_dataset)
    return HubLongBenchV2(datasets=datasets, revision=hf_revision)
