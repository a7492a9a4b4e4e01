"""``sembench roi``: what reuse would save on your traffic."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sembench.comparing.roi import RoiModel, buckets, estimate, parse_pairs
from sembench.errors import UsageError

_DEFAULT = RoiModel()


def roi(
    histogram: Annotated[str, typer.Option(help="tokens:share,… or a .csv with both columns.")],
    hit_rate: Annotated[float, typer.Option(min=0, max=1, help="Share of prompts that hit.")] = 0.0,
    hit_rate_by_bucket: Annotated[
        str | None, typer.Option(help="Hit rate per bucket: tokens:rate,…")
    ] = None,
    qps: Annotated[float, typer.Option(min=0, help="Requests per second.")] = 1.0,
    prefill_fixed_ms: Annotated[
        float, typer.Option(help="Fixed cost of a prefill.")
    ] = _DEFAULT.prefill_fixed_ms,
    prefill_ms_per_token: Annotated[
        float, typer.Option(help="Cost per computed token.")
    ] = _DEFAULT.prefill_ms_per_token,
    lookup_ms: Annotated[float, typer.Option(help="Cost of a donor lookup.")] = _DEFAULT.lookup_ms,
    capture_ms_per_token: Annotated[
        float, typer.Option(help="Cost of keeping a donor, per token.")
    ] = _DEFAULT.capture_ms_per_token,
    served_fraction: Annotated[
        float, typer.Option(help="Share of a hit's tokens that are reused.")
    ] = _DEFAULT.served_fraction,
    materialize_ms_per_token: Annotated[
        float, typer.Option(help="Cost per reused token.")
    ] = _DEFAULT.materialize_ms_per_token,
    min_prompt_tokens: Annotated[
        int, typer.Option(help="Skip the lookup for prompts shorter than this.")
    ] = _DEFAULT.min_prompt_tokens,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Estimate savings from a traffic histogram and a cost model."""
    if hit_rate == 0.0 and hit_rate_by_bucket is None:
        raise UsageError("give --hit-rate or --hit-rate-by-bucket")
    traffic = buckets(
        parse_pairs(histogram, flag="--histogram"),
        hit_rate=hit_rate,
        by_bucket=parse_pairs(hit_rate_by_bucket, flag="--hit-rate-by-bucket")
        if hit_rate_by_bucket
        else {},
    )
    model = RoiModel(
        prefill_fixed_ms=prefill_fixed_ms,
        prefill_ms_per_token=prefill_ms_per_token,
        lookup_ms=lookup_ms,
        capture_ms_per_token=capture_ms_per_token,
        served_fraction=served_fraction,
        materialize_ms_per_token=materialize_ms_per_token,
        min_prompt_tokens=min_prompt_tokens,
    )
    report = estimate(traffic, model, qps=qps)
    if as_json:
        typer.echo(json.dumps(report, indent=2))
        return
    table = Table(title="Prefill time by prompt length")
    columns = (
        "tokens",
        "share",
        "hit rate",
        "cold ms",
        "expected ms",
        "speed-up",
        "breaks even at",
    )
    for column in columns:
        table.add_column(column, justify="right")
    for row in report["buckets"]:
        even = row["break_even_hit_rate"]
        table.add_row(
            f"{row['tokens']:g}",
            f"{row['share']:.1%}",
            f"{row['hit_rate']:.1%}",
            f"{row['cold_ms']:.0f}",
            f"{row['expected_ms']:.0f}",
            f"{row['speedup']:.2f}x",
            "never" if even is None else f"{even:.1%}",
        )
    Console().print(table)
    typer.echo(
        f"saved: {report['saved_fraction']:.1%} of prefill time, "
        f"{report['saved_prefill_hours_per_day']:.1f} prefill hours per day "
        f"at {qps:g} requests per second"
    )
