"""The per-transform table in every format: only what was measured, a dash otherwise."""

from __future__ import annotations

from sembench import statistics
from sembench.comparing.paired import usable_pairs
from sembench.reports.report import NOT_MEASURED, Report, TextTable, number, percent

_COLUMNS = (
    "transform",
    "requests",
    "exact",
    "eligible",
    "confirmed",
    "quality",
    "ttft p50, ms",
    "speed-up",
)
DASH = "–"


def transform_table(report: Report) -> TextTable:
    """One line per transform; columns that no transform has are omitted."""
    lines = _cells(report)
    kept = [
        position
        for position in range(len(_COLUMNS))
        if position < 3 or any(line[position] != DASH for line in lines)
    ]
    return TextTable(
        columns=tuple(_COLUMNS[position] for position in kept),
        lines=tuple(tuple(line[position] for position in kept) for line in lines),
    )


def _cells(report: Report) -> list[tuple[str, ...]]:
    ratios: dict[str, list[float]] = {}
    for row in usable_pairs(report.rows):
        if row.ttft_speedup is not None:
            ratios.setdefault(row.transform, []).append(row.ttft_speedup)
    lines: list[tuple[str, ...]] = []
    for name, values in report.result.by_transform.items():
        paired = ratios.get(name)
        lines.append(
            (
                name,
                str(values.get("requests", "")),
                percent(values.get("exact_block_hit_rate")),
                percent(values.get("semantic_eligible_block_rate")),
                percent(values.get("backend_confirmed_block_rate")),
                percent(values.get("quality_pass_rate")),
                number(values.get("ttft_ms_p50"), ".1f"),
                number(statistics.median(paired), ".2f") + "x" if paired else NOT_MEASURED,
            )
        )
    return [tuple(DASH if cell == NOT_MEASURED else cell for cell in line) for line in lines]
