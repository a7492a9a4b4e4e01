"""From a run that went on until sure to its certificate and the page that explains it."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from pathlib import Path
from typing import Any

from semblend import __version__
from semblend.planning.certificates import MEASUREMENT_VERSION, Certificate, plugin_entries
from semblend.quality.figures import figures_of
from semblend.quality.issuing import VALID_DAYS
from semblend.quality.items import data_fingerprint
from semblend.quality.limits import Limits, LimitWatch
from semblend.quality.redteam.summaries import NOT_COVERED
from semblend.quality.reports import figure_tables
from semblend.quality.reports.certificate_report import STYLE
from semblend.quality.seam import MeasuredFacts
from semblend.quality.until_sure import UntilSureResult

HEADINGS = (
    "workload", "judged by", "items", "lost", "limit", "decided", "cold right", "leaks", "KL",
    "recomputed",
)  # fmt: skip


def certificate_of(
    found: UntilSureResult,
    *,
    facts: MeasuredFacts,
    limits: Limits,
    data: dict[str, Any],
    now: datetime | None = None,
) -> Certificate | None:
    """The certificate, if nothing speaks against the policy."""
    if found.objections:
        return None
    now = datetime.now(UTC) if now is None else now
    records = [record for watch in found.confirmation for record in watch.records]
    return Certificate(
        model=Path(facts.model).name,
        fingerprint=facts.fingerprint,
        dtype=facts.dtype,
        policy=found.policy,
        bound=limits.to_dict(),
        figures={
            "chosen": [row.to_dict() for row in figures_of(records)],
            "naive": [row.to_dict() for row in figures_of(found.naive)],
            "noise_floor": found.noise,
            "confidence": {
                "false_pass_at_most": round(limits.alpha, 6),
                "workloads": [watch.to_dict() for watch in found.confirmation],
                "judged_by_agreement_alone": found.not_counted,
            },
            "redteam": None if found.redteam is None else found.redteam.to_dict(),
        },
        data={
            **data,
            "architecture": facts.architecture,
            **facts.asked_at_load,
            "engine": facts.to_dict(),
            "confirmed_on": {
                "items": len(found.shown),
                "workloads": [watch.workload for watch in found.confirmation],
                "fingerprint": data_fingerprint(found.shown),
            },
        },
        versions={
            "semblend": __version__,
            "measurement": str(MEASUREMENT_VERSION),
            **plugin_entries(found.policy),
            facts.engine: facts.version,
            **facts.versions,
            "python": platform.python_version(),
            "measured_on": facts.hardware,
        },
        created=now.isoformat(timespec="seconds"),
        expires=(now + timedelta(days=VALID_DAYS)).isoformat(timespec="seconds"),
    ).hashed()


def page(found: UntilSureResult, *, facts: MeasuredFacts, limits: Limits, command: str) -> str:
    """One HTML file: the verdict, the engine, the limits and every workload."""
    judged = (
        f'<p class="no">Not certified: {escape("; ".join(found.objections))}.</p>'
        if found.objections
        else f'<p class="yes">Certified: <code>{escape(found.policy)}</code></p>'
    )
    named = [(key, str(value)) for key, value in facts.to_dict().items() if key != "left_out"]
    weak = ", ".join(found.not_counted) or "none"
    body = [
        f"<h1>Quality of reuse: {escape(Path(facts.model).name)}</h1>",
        judged,
        f"<p>A policy that breaks a limit on any workload would be certified with probability "
        f"{limits.alpha:.2g} at most. {NOT_COVERED} {_attacked(found)} Workloads that cold "
        f"seldom answers right, judged by agreement alone: {escape(weak)}. Left out: "
        f"{escape('; '.join(facts.left_out) or 'nothing')}.</p>",
        figure_tables.html(("engine", "value"), [*named, ("weights", facts.fingerprint)]),
        "<h2>Limits</h2>",
        figure_tables.html(("limit", "value"), [(k, str(v)) for k, v in limits.to_dict().items()]),
        "<h2>Confirmed by</h2>",
        figure_tables.html(HEADINGS, rows_of(found.confirmation)),
        "<h2>Chosen by</h2>" if found.choice else "",
        figure_tables.html(("policy", *HEADINGS), _with_policy(found.choice))
        if found.choice
        else "",
        f"<p>Noise floor, cold against itself over {found.noise.get('items', 0):.0f} items: mean "
        f"KL {found.noise.get('kl_mean', 0.0):.2g}. {found.seconds / 60:.1f} minutes. "
        f"<code>{escape(command)}</code></p>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>Quality of reuse</title><style>{STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _attacked(found: UntilSureResult) -> str:
    if found.redteam is None:
        return "No red team attacked it."
    return f"Red team: {escape(found.redteam.sentence)}."


def rows_of(watched: Sequence[LimitWatch]) -> list[tuple[str, ...]]:
    """One row a workload."""
    rows: list[tuple[str, ...]] = []
    for watch in watched:
        said, records = watch.to_dict(), watch.records
        count = max(1, len(records))
        rows.append(
            (
                watch.workload,
                said["judged_by"],
                str(said["items"]),
                f"{said['losses']:g}",
                f"{said['limit']:.1%}",
                said["answer"],
                f"{sum(r.cold_right for r in records) / count:.0%}",
                str(watch.leaks),
                f"{sum(r.kl for r in records) / count:.1e}",
                f"{watch.price:.1%}",
            )
        )
    return rows


def _with_policy(watched: Sequence[LimitWatch]) -> list[tuple[str, ...]]:
    return [(watch.policy, *row) for watch, row in zip(watched, rows_of(watched), strict=True)]
