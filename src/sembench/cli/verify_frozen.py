"""``sembench verify-frozen``: is a manifest still the one that was frozen?"""

from __future__ import annotations

from typing import Annotated

import typer

from sembench.errors import ChecksumError
from sembench.manifests.freezing import verify_manifest
from sembench.manifests.spec import load_spec
from sembench.terminal.shared_options import ManifestsDir, Spec


def verify_frozen(
    spec: Spec,
    manifests_dir: ManifestsDir,
    block_size: Annotated[
        int | None,
        typer.Option(min=1, help="Recount exact figures only if frozen with this block size."),
    ] = None,
) -> None:
    """Check a frozen manifest's checksum, count, spec and exact figures; exit 1 on a difference."""
    problems = verify_manifest(load_spec(spec), manifests_dir, block_size=block_size)
    if problems:
        raise ChecksumError("; ".join(problems))
    typer.echo(f"{spec}: matches its checksums")
