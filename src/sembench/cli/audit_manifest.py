"""``sembench audit-manifest``: does every item do what its transform promises?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sembench.manifests.auditing import audit
from sembench.terminal.shared_options import BlockSize, Manifest, TokenizerName
from sembench.tokenizers import load_tokenizer


def audit_manifest(
    manifest: Manifest,
    output: Annotated[
        Path | None, typer.Option(help="JSON file to write; default: standard output.")
    ] = None,
    block_size: BlockSize = 16,
    tokenizer: TokenizerName = None,
) -> None:
    """Check every item against its transform's rules and count items; exit 1 on violations."""
    report = audit(manifest, tokenizer=load_tokenizer(tokenizer), block_size=block_size)
    text = json.dumps(report, indent=2, ensure_ascii=False)
    if output is None:
        typer.echo(text)
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text + "\n", encoding="utf-8")
        typer.echo(f"{output}: {report['items']} items, {report['violation_count']} violations")
    if report["violation_count"]:
        raise typer.Exit(1)
