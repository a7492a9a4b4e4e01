"""``sembench compare``: two or more results side by side, with intervals."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from sembench.comparing.compare import compare as compare_results
from sembench.errors import UsageError
from sembench.reports.comparison import comparison_console, comparison_markdown
from sembench.results import read_result


def compare(
    result: Annotated[
        list[Path], typer.Option(help="Result file; repeatable. The first is the baseline.")
    ],
    output: Annotated[
        Path | None, typer.Option(help="File to write the comparison to (.json or .md).")
    ] = None,
    allow_different_manifests: Annotated[
        bool,
        typer.Option("--allow-different-manifests", help="Compare only the items both have."),
    ] = False,
) -> None:
    """Compare results of one manifest item by item, with bootstrap intervals."""
    stems = Counter(path.stem for path in result)
    names = [path.stem if stems[path.stem] == 1 else str(path) for path in result]
    comparison = compare_results(
        [(name, read_result(path)) for name, path in zip(names, result, strict=True)],
        allow_different_manifests=allow_different_manifests,
    )
    if output is None:
        comparison_console(comparison)
        return
    if output.suffix == ".json":
        text = json.dumps(comparison, indent=2) + "\n"
    elif output.suffix == ".md":
        text = comparison_markdown(comparison)
    else:
        raise UsageError(f"--output: expected a .json or .md file, got {output.name}")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")
    typer.echo(str(output))
