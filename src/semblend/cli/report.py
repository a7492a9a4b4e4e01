"""`semblend report AUDIT.jsonl`: what reuse saved, and what it could save."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from semblend.core.errors import SettingsError
from semblend.integration.auditing.savings import Savings, Share, add_up, audit_files
from semblend.integration.auditing.savings_page import duration, write_page
from semblend.terminal.tables import output, table


def report(
    audit: Annotated[
        list[Path],
        typer.Argument(help="Audit files (audit_path); rotated files are found too."),
    ],
    html: Annotated[Path | None, typer.Option(help="Also write a page to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    top: Annotated[int, typer.Option(min=1, help="Documents and tenants to show.")] = 10,
    prefill_us_per_token: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Microseconds of prefill per token; default: as measured in the stream "
            "(SGLang does not measure it).",
        ),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="GPUs per engine; default: its ranks.")
    ] = None,
) -> None:
    """Report how many prompt tokens were or could be reused, and the time that saves."""
    found = add_up(
        _lines(audit),
        seconds_per_token=None if not prefill_us_per_token else prefill_us_per_token / 1e6,
        gpus=gpus,
    )
    if html is not None:
        write_page(html, found, top=top)
    if as_json:
        typer.echo(json.dumps(found.to_dict(top=top)))
        return
    _show(output(), found, top=top)
    if html is not None:
        typer.echo(f"written: {html}")


def _lines(paths: list[Path]) -> Iterator[str]:
    for path in audit_files(paths):
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                yield from file
        except OSError as error:
            raise SettingsError(f"{path}: {error.strerror or error}") from error


def _show(console: Console, found: Savings, *, top: int) -> None:
    total = found.total
    lines = [
        f"{total.requests:,} requests, {total.prompt_tokens:,} prompt tokens, "
        f"{found.hours:.1f} hours",
        f"reused:   {total.reused_share:6.1%} of prompt tokens, {duration(total.saved_seconds)} "
        "of prefill saved",
        f"reusable: {total.reusable_share:6.1%} of prompt tokens, "
        f"{duration(total.savable_seconds)} of prefill ({found.gpu_hours:.2f} GPU-hours) would "
        "be saved",
    ]
    if not found.timed:
        lines.append(
            "some engines did not report prefill times; give them with --prefill-us-per-token"
        )
    if found.unreadable:
        lines.append(f"{found.unreadable:,} lines are not audit records and were skipped")
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    if found.documents:
        most = table("document (donor)", "requests", "tokens", title="Documents reused most")
        for each in found.documents[:top]:
            most.add_row(escape(each.donor_id), f"{each.requests:,}", f"{each.tokens:,}")
        console.print(most)
    tenants = table("tenant", "requests", "reused", "reusable", "would save", title="By tenant")
    for name, share in list(found.tenants.items())[:top]:
        tenants.add_row(escape(name), *_cells(share))
    console.print(tenants)


def _cells(share: Share) -> tuple[str, ...]:
    return (
        f"{share.requests:,}",
        f"{share.reused_share:.1%}",
        f"{share.reusable_share:.1%}",
        duration(share.savable_seconds),
    )
