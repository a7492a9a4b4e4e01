"""All relatives in one table, for docs/quality.md."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from benchmarks.relatives.measuring import Results
from semblend.quality.certifying import candidates
from semblend.terminal.measured_engines import unshifted

HEADINGS = (
    "Model",
    "Facts found cold",
    "Deviation of K/V, composed: copied, shifted",
    "Right of cold's, composed: naive, unshifted, candidate",
    "Right of cold's, edited: naive, candidate",
    "Certified",
    "Red team, leaks",
)


def table(found: Sequence[Results]) -> str:
    """Markdown, a row a model."""
    rows = [HEADINGS, tuple("---" for _ in HEADINGS), *map(_row, found)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(one: Results) -> tuple[str, ...]:
    best = candidates()[0]
    return (
        f"{one.name}: {one.changed}",
        "not measured" if one.facts is None else f"{one.facts:.1%}",
        ", ".join(_deviation(one, spec) for spec in ("none", "depth_shift(none)")),
        ", ".join(_kept(one, "composed", spec) for spec in ("none", unshifted(best), best)),
        ", ".join(_kept(one, "edited_exchanged", spec) for spec in ("none", best)),
        f"`{one.certified}` ({one.engine})" if one.certified else one.refusal or "not measured",
        one.redteam or "not measured",
    )


def _deviation(one: Results, spec: str) -> str:
    layers = one.deviation.get(f"composed, {spec}")
    return f"{fmean(layers):.3f}" if layers else "–"


def _kept(one: Results, workload: str, spec: str) -> str:
    for row in one.leaderboard:
        if row["workload"] == workload and row["policy"] == spec and row["cold_right"]:
            return f"{row['right'] / row['cold_right']:.1%}"
    return "–"
