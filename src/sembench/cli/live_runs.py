"""What the two replay commands share once their clients are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

_SHOWN = (
    ("requests", "requests"),
    ("errors", "errors"),
    ("exact_block_hit_rate", "exact block hit rate"),
    ("backend_confirmed_block_rate", "backend-confirmed block rate"),
    ("backend_confirmed_lift", "backend-confirmed lift"),
    ("quality_pass_rate", "quality pass rate"),
    ("negative_control_backend_confirmed_rate", "negative controls confirmed"),
    ("ttft_ms_p50", "time to first token p50, ms"),
)
_SHOWN_PAIRED = (
    ("blended_ttft_speedup_median", "speed-up, blended (median)"),
    ("hit_ttft_speedup_median", "speed-up, hits (median)"),
    ("negative_control_speedup_median", "speed-up, negative controls (median)"),
    ("warm_vs_cold_rouge_l_mean", "warm vs cold ROUGE-L"),
    ("donor_fact_leak_rate", "donor fact leak rate"),
    ("propagation_contamination_rate", "contamination rate"),
)


def show(head: Mapping[str, Any], output: object) -> None:
    """The run in a few lines; what was not measured is said so."""
    for section, names in ((head["aggregate"], _SHOWN), (head["paired"], _SHOWN_PAIRED)):
        for name, label in names if section else ():
            value = section.get(name)
            text = "not measured" if value is None else f"{value:.4g}"
            typer.echo(f"{label:40} {text}")
    typer.echo(f"result: {output}")
