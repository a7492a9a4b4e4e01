"""``sembench merge-results``: combine a cold and a warm result into a paired one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sembench.comparing.audit_join import join_audit
from sembench.comparing.merge import merge
from sembench.manifests.files import open_text
from sembench.results import read_result, write_result
from sembench.terminal.live_options import ConnectorAudit, Output
from sembench.terminal.live_runs import show


def merge_results(
    cold: Annotated[Path, typer.Option(help="Result of the cold arm.")],
    warm: Annotated[Path, typer.Option(help="Result of the warm arm.")],
    output: Output,
    allow_unpaired: Annotated[
        bool, typer.Option("--allow-unpaired", help="Drop items that only one arm has.")
    ] = False,
    connector_audit: ConnectorAudit = None,
) -> None:
    """Pair the rows of two results of one manifest, item by item."""
    merged = merge(read_result(cold), read_result(warm), allow_unpaired=allow_unpaired)
    if connector_audit is not None:
        with open_text(connector_audit) as stream:
            merged = join_audit(merged, stream)
    write_result(output, merged)
    show(merged.head(), output)
