"""``sembench build``: turn a profile's records into a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sembench.errors import SourceError, UsageError
from sembench.ids import file_sha256
from sembench.manifests.building import BuildReport, build_items, source_for
from sembench.manifests.files import write_manifest
from sembench.manifests.freezing import check_against_frozen
from sembench.manifests.spec import BuildSpec, RecordChoice, load_spec
from sembench.progress import track
from sembench.terminal.shared_options import DataDir


def build(
    output: Annotated[Path, typer.Option(help="Manifest to write (.jsonl, .xz, .gz).")],
    profile: Annotated[
        str | None,
        typer.Option(help="fixture, synthetic-v1, longbench-v1, longbench-v2 or published."),
    ] = None,
    frozen: Annotated[
        str | None,
        typer.Option(
            help="Build this frozen spec (a name or a .json file) and compare it with its "
            "CHECKSUMS file if there is one."
        ),
    ] = None,
    datasets: Annotated[
        list[str] | None, typer.Option(help="Datasets of the profile; default: all.")
    ] = None,
    max_items_per_dataset: Annotated[
        int | None, typer.Option(min=1, help="Records to take from each dataset.")
    ] = None,
    transforms: Annotated[
        list[str] | None, typer.Option(help="Transforms to apply; default: all.")
    ] = None,
    max_segments: Annotated[int, typer.Option(min=2, help="Maximum segments per document.")] = 4,
    min_segment_chars: Annotated[
        int, typer.Option(min=1, help="Minimum characters per segment.")
    ] = 400,
    hf_revision: Annotated[
        str | None, typer.Option(help="Dataset revision on the Hugging Face hub.")
    ] = None,
    data_dir: DataDir = None,
    seed: Annotated[int, typer.Option(help="Random seed; same seed and data, same bytes.")] = 0,
    sample: Annotated[
        RecordChoice, typer.Option(help="Which records to take when there are more than needed.")
    ] = RecordChoice.FIRST,
) -> None:
    """Build a manifest. The seed fixes every byte, and each transform checks its items."""
    if (profile is None) == (frozen is None):
        raise UsageError("give either --profile or --frozen")
    if frozen is not None:
        spec = load_spec(frozen)
        for flag, given in (
            ("--datasets", datasets),
            ("--transforms", transforms),
            ("--max-items-per-dataset", max_items_per_dataset),
            ("--hf-revision", hf_revision),
        ):
            if given:
                raise UsageError(f"{flag}: not allowed with --frozen, whose spec fixes everything")
    else:
        spec = BuildSpec(
            name=output.name.split(".")[0],
            profile=profile or "",
            datasets=tuple(datasets or ()),
            transforms=tuple(transforms or ()),
            max_items_per_dataset=max_items_per_dataset,
            max_segments=max_segments,
            min_segment_chars=min_segment_chars,
            hf_revision=hf_revision,
            seed=seed,
            sample=sample,
        )
    report = BuildReport()
    items = build_items(spec, source_for(spec, data_dir=data_dir), report)
    count = write_manifest(output, track(items, description="building"))
    if count == 0:
        output.unlink()
        raise SourceError(f"nothing was built: {_skips(report) or 'the source has no records'}")
    typer.echo(f"{output}: {count} items from {report.records} records")
    typer.echo(f"sha256 {file_sha256(output)}")
    for name, number in report.items.items():
        typer.echo(f"  {name}: {number}")
    if report.skipped:
        typer.echo(_skips(report), err=True)
    if frozen is not None:
        verdict = check_against_frozen(spec, output)
        typer.echo(verdict)


def _skips(report: BuildReport) -> str:
    return "\n".join(
        f"skipped {number} of {report.records} records for {name} (first: {report.reasons[name]})"
        for name, number in report.skipped.items()
    )
