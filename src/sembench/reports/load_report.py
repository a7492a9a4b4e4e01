"""The content of a load run's report, independent of the output format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sembench.live.arrivals import ArrivalKind
from sembench.load_results import LoadResult, LoadRow
from sembench.reports.report import (
    NOT_MEASURED,
    Bar,
    Check,
    ReportQuestion,
    TextTable,
    number,
    provenance_facts,
)

TIMES = (
    ("ttft_ms", "time to first token"),
    ("latency_ms", "time to last token"),
    ("tpot_ms", "time per output token"),
    ("lag_ms", "sent later than due"),
)
KINDS = ("in-time", "late", "failed", "uncounted")
_COLUMNS = ("ms", "n", "mean", "p50", "p90", "p95", "p99", "max")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What every output format is rendered from."""

    title: str
    result: LoadResult
    counted: tuple[LoadRow, ...]
    questions: tuple[ReportQuestion, ...]
    checks: tuple[Check, ...]
    times: TextTable
    facts: tuple[tuple[str, str], ...]

    def kinds(self) -> dict[int, str]:
        """The outcome of each request (one of `KINDS`), by its position in the schedule."""
        objective = self.result.objective
        found = {row.position: "uncounted" for row in self.result.requests}
        for row in self.counted:
            failed, met = row.error is not None, objective.met(row)
            found[row.position] = "failed" if failed else "in-time" if met else "late"
        return found


def build_load_report(result: LoadResult, *, title: str | None = None) -> LoadReport:
    return LoadReport(
        title=title or f"SemBench load: {result.run.backend_id or result.config.get('model')}",
        result=result,
        counted=result.counted,
        questions=_questions(result),
        checks=_checks(result),
        times=_times(result.aggregate),
        facts=(
            *provenance_facts(
                run=result.run,
                created_at_utc=result.created_at_utc,
                config=result.config,
                environment=result.environment,
                engine=result.engine,
            ),
            *_load_facts(result),
        ),
    )


def objective_text(result: LoadResult) -> str:
    """The objective in words."""
    names = dict(TIMES)
    parts = [f"{names[name]} ≤ {limit:g} ms" for name, limit in result.objective.parts()]
    return ", ".join(parts) or "an answer, with no time limit"


def arrival_text(config: Mapping[str, Any]) -> str:
    """How requests were sent, in words."""
    kind, users = config.get("arrival"), config.get("concurrency")
    if kind == ArrivalKind.CLOSED:
        return f"{users} users, each asking again when answered"
    name, rate = str(kind).capitalize(), config.get("rate")
    return f"{name} arrivals, {rate} per second, at most {users} in flight"


def _questions(result: LoadResult) -> tuple[ReportQuestion, ...]:
    aggregate = result.aggregate
    attained = aggregate.get("slo_attainment")
    counted = aggregate.get("requests_counted") or 0
    answered = aggregate["completed"] / counted if counted else None
    cached = [row.cached_tokens for row in result.counted if row.cached_tokens is not None]
    reused = [row.reused_tokens for row in result.counted if row.reused_tokens is not None]
    ttft = aggregate.get("ttft_ms") or {}
    return (
        ReportQuestion(
            title="What was the load?",
            answer=f"{arrival_text(result.config)}: {counted} requests counted over "
            f"{number(aggregate.get('window_seconds'), '.3g')} s. The objective is "
            f"{objective_text(result)}.",
            bars=(),
        ),
        ReportQuestion(
            title="How much of it met the objective?",
            answer=f"Goodput {number(aggregate.get('goodput_requests_per_second'), '.3g')} of "
            f"{number(aggregate.get('requests_per_second'), '.3g')} requests per second that were "
            "answered.",
            bars=(
                Bar(label="answered", rate=answered, kind="exact"),
                Bar(label="answered within the objective", rate=attained, kind="confirmed"),
            ),
        ),
        ReportQuestion(
            title="How long did it take?",
            answer="No request was answered."
            if not ttft
            else f"Half of all first tokens came within {ttft['p50']:.4g} ms of when the request "
            f"was due, 99 in 100 within {ttft['p99']:.4g} ms; "
            f"{number(aggregate.get('output_tokens_per_second'), '.3g')} tokens per second.",
            bars=(),
        ),
        ReportQuestion(
            title="What did the backend reuse?",
            answer="The backend does not report reuse."
            if not cached
            else f"{sum(cached)} tokens confirmed by the backend in {len(cached)} requests"
            + (f", {sum(reused)} of them semantic." if reused else "."),
            bars=(),
        ),
    )


def _checks(result: LoadResult) -> tuple[Check, ...]:
    aggregate = result.aggregate
    failed, sessions = aggregate.get("failed"), aggregate.get("sessions") or 1
    lag = aggregate.get("lag_ms")
    open_loop = result.config.get("arrival") != ArrivalKind.CLOSED
    sent, counted = aggregate.get("requests_sent"), aggregate.get("requests_counted")
    return (
        Check(
            label="Failed requests",
            value=number(failed),
            good=None if not counted else failed == 0,
        ),
        Check(
            label="An objective was set",
            value=objective_text(result),
            good=bool(result.objective.parts()),
            detail="without one every answer counts as good, however late",
        ),
        Check(
            label="Requests were sent when due",
            value=NOT_MEASURED if lag is None else f"99 in 100 within {lag['p99']:.3g} ms",
            # Every time above includes this wait. A long wait means that the limit on requests in
            # flight set the pace, not the arrival process.
            good=None if lag is None or not open_loop else lag["p99"] <= _LAG_MS,
            detail="waiting inside the client counts against the endpoint; a long wait means "
            "that --concurrency set the pace, not the arrivals",
        ),
        Check(
            label="The run was not interrupted",
            value=f"{sessions} session{'s' if sessions != 1 else ''}",
            good=sessions == 1,
            detail="each session meets an idle endpoint and has its own warm-up",
        ),
        Check(
            label="Requests counted",
            value=f"{counted} of {sent}",
            good=None if sent is None else bool(counted),
            detail="the others fell into warm-up or cool-down",
        ),
    )


_LAG_MS = 100.0


def _times(aggregate: Mapping[str, Any]) -> TextTable:
    lines = []
    for name, label in TIMES:
        shape = aggregate.get(name)
        figures = [NOT_MEASURED] * 7 if shape is None else _figures(shape)
        lines.append((label, *figures))
    return TextTable(columns=_COLUMNS, lines=tuple(lines))


def _figures(shape: Mapping[str, Any]) -> list[str]:
    return [str(shape["n"]), *(f"{shape[name]:.4g}" for name in _COLUMNS[2:])]


def _load_facts(result: LoadResult) -> tuple[tuple[str, str], ...]:
    config = result.config
    named = (
        ("arrivals", arrival_text(config)),
        ("arrival seed", config.get("seed")),
        ("objective", objective_text(result)),
        (
            "warm-up, cool-down",
            f"{config.get('warmup_seconds')} s, {config.get('cooldown_seconds')} s",
        ),
        ("tokens generated per request", config.get("max_tokens")),
    )
    return tuple((name, str(value)) for name, value in named if value not in (None, ""))
