"""``sembench freeze``: pin a spec's manifest by checksum."""

from __future__ import annotations

from typing import Annotated

import typer

from sembench.manifests.freezing import checksums_name, freeze_manifest
from sembench.manifests.spec import load_spec
from sembench.terminal.shared_options import BlockSize, DataDir, ManifestsDir, Spec


def freeze(
    spec: Spec,
    manifests_dir: ManifestsDir,
    block_size: BlockSize = 16,
    data_dir: DataDir = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an existing checksum file that differs.")
    ] = False,
) -> None:
    """Write CHECKSUMS.<spec>.json. Builds the manifest first if the folder has none."""
    chosen = load_spec(spec)
    checksums = freeze_manifest(
        chosen, manifests_dir, block_size=block_size, data_dir=data_dir, replace=replace
    )
    typer.echo(
        f"{manifests_dir / checksums_name(chosen)}: {checksums['workload_items']} items, "
        f"sha256 {checksums['sha256']}"
    )
