"""The content of a report, built once from a result, independent of the output format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sembench.comparing import paired
from sembench.results import RequestRow, Result, RunMetadata

NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A rate in [0, 1]; None if it was not measured."""

    label: str
    rate: float | None
    kind: str
    """``exact``, ``candidate``, ``semantic``, ``confirmed`` or ``quality``; picks the color."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportQuestion:
    """One of the four questions and the run's answer."""

    title: str
    answer: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check that would invalidate the figures; `good` is None if it did not run."""

    label: str
    value: str
    good: bool | None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """Cells as text; the first column names the row."""

    columns: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What every output format is rendered from."""

    title: str
    result: Result
    paired: Mapping[str, Any]
    questions: tuple[ReportQuestion, ...]
    checks: tuple[Check, ...]
    facts: tuple[tuple[str, str], ...]
    """Where the figures come from: model, backend, data, versions, command."""

    @property
    def rows(self) -> tuple[RequestRow, ...]:
        return self.result.requests

    @property
    def negatives(self) -> tuple[RequestRow, ...]:
        return tuple(row for row in self.rows if row.negative_control)


def number(value: float | int | None, spec: str = ".4g") -> str:
    """A figure as text, or "not measured"."""
    return NOT_MEASURED if value is None else format(value, spec)


def percent(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.1%}"


def with_interval(value: float | None, interval: Any, suffix: str = "") -> str:
    """A figure with its interval, if there is one."""
    if value is None:
        return NOT_MEASURED
    if not isinstance(interval, list | tuple) or len(interval) != 2:
        return f"{value:.3g}{suffix}"
    return f"{value:.3g}{suffix} (95 % {interval[0]:.3g} to {interval[1]:.3g})"


def build_report(result: Result, *, title: str | None = None) -> Report:
    """Build the report of a result. Pairs are recomputed from the rows."""
    pairs = paired.summarise(result.requests)
    return Report(
        title=title or f"SemBench: {result.run.backend_id or result.run.engine}",
        result=result,
        paired=pairs,
        questions=_questions(result.aggregate, pairs),
        checks=_checks(result, pairs),
        facts=provenance_facts(
            run=result.run,
            created_at_utc=result.created_at_utc,
            config=result.config,
            environment=result.environment,
            engine=result.engine,
        ),
    )


def _questions(
    aggregate: Mapping[str, Any], pairs: Mapping[str, Any]
) -> tuple[ReportQuestion, ...]:
    exact = aggregate.get("exact_block_hit_rate")
    eligible = aggregate.get("semantic_eligible_block_rate")
    confirmed = aggregate.get("backend_confirmed_block_rate")
    speedup = pairs["blended_ttft_speedup_median"]
    return (
        ReportQuestion(
            title="Did an exact cache already cover it?",
            answer=f"A donor has {percent(exact)} of full blocks as the same full block.",
            bars=(Bar(label="exact", rate=exact, kind="exact"),),
        ),
        ReportQuestion(
            title="Did a planner find reusable spans?",
            answer="No planner was used."
            if eligible is None
            else f"{percent(eligible)} of blocks are eligible, a lift of "
            f"{number(aggregate.get('semantic_eligible_lift'), '+.3f')} over exact.",
            bars=(
                Bar(
                    label="candidate",
                    rate=aggregate.get("semantic_candidate_block_rate"),
                    kind="candidate",
                ),
                Bar(label="eligible", rate=eligible, kind="semantic"),
            ),
        ),
        ReportQuestion(
            title="Did the backend really reuse them?",
            answer="The backend confirmed nothing: this was no live run, or it reports no reuse."
            if confirmed is None
            else f"{percent(confirmed)} of blocks are confirmed by the backend, a lift of "
            f"{number(aggregate.get('backend_confirmed_lift'), '+.3f')} over exact.",
            bars=(Bar(label="confirmed", rate=confirmed, kind="confirmed"),),
        ),
        ReportQuestion(
            title="Did time and quality hold?",
            answer="Time was not compared: no cold arm."
            if speedup is None
            else "Time to first token is "
            + with_interval(speedup, pairs["blended_ttft_speedup_ci"], "x")
            + " better, median of pairs; negative controls "
            + with_interval(pairs["negative_control_speedup_median"], None, "x")
            + ".",
            bars=(
                Bar(
                    label="quality cold",
                    rate=pairs["cold_quality_pass_rate"],
                    kind="quality",
                ),
                Bar(
                    label="quality served",
                    rate=aggregate.get("quality_pass_rate"),
                    kind="quality",
                ),
            ),
        ),
    )


def _checks(result: Result, pairs: Mapping[str, Any]) -> tuple[Check, ...]:
    aggregate = result.aggregate
    errors = aggregate.get("errors")
    deviation = pairs["negative_control_speedup_deviation"]
    dirty = pairs["excluded_reasons"].get("flush_contaminated", 0)
    negatives = aggregate.get("negative_control_requests") or 0
    semantic = pairs["negative_control_semantic_tokens"]
    return (
        Check(
            label="Failed requests",
            value=number(errors),
            good=None if errors is None else errors == 0,
        ),
        Check(
            label="Negative controls reused semantically",
            value=NOT_MEASURED if semantic is None else f"{semantic} tokens",
            good=None if not negatives or semantic is None else semantic == 0,
            detail=f"{negatives} negative controls",
        ),
        Check(
            label="Negative controls' time relative to cold",
            value=NOT_MEASURED if deviation is None else f"{deviation:.1%} from 1x",
            good=None if deviation is None else deviation <= 0.25,
            detail="they share nothing with their donors, so they must not be faster",
        ),
        Check(
            label="Donor facts in answers",
            value=f"{pairs['donor_fact_leaks']} of {pairs['donor_fact_probes']} probes"
            if pairs["donor_fact_probes"]
            else NOT_MEASURED,
            good=None if not pairs["donor_fact_probes"] else pairs["donor_fact_leaks"] == 0,
        ),
        Check(
            label="Repeats served approximate K/V as exact",
            value=f"{pairs['contaminated_repeats']} of {pairs['contamination_checks']}"
            if pairs["contamination_checks"]
            else NOT_MEASURED,
            good=None if not pairs["contamination_checks"] else pairs["contaminated_repeats"] == 0,
        ),
        Check(
            label="Cold requests that were not cold",
            value=str(dirty) if pairs["pairs"] or dirty else NOT_MEASURED,
            good=None if not (pairs["pairs"] or dirty) else dirty == 0,
            detail="their pairs are excluded",
        ),
    )


def provenance_facts(
    *,
    run: RunMetadata,
    created_at_utc: str,
    config: Mapping[str, Any],
    environment: Mapping[str, Any],
    engine: Mapping[str, Any] | None,
) -> tuple[tuple[str, str], ...]:
    """Where a result's figures come from, as (name, text)."""
    flags = (engine or {}).get("flags") or {}
    packages = environment.get("packages") or {}
    found: list[tuple[str, Any]] = [
        ("run", run.run_id),
        ("made", created_at_utc),
        ("engine", run.engine),
        ("engine version", run.engine_version),
        ("backend", run.backend_id),
        ("baseline", run.baseline_id),
        ("model", config.get("model")),
        ("tokenizer", config.get("tokenizer")),
        ("block size", config.get("block_size")),
        ("manifest", run.manifest_path),
        ("manifest sha256", run.manifest_sha256),
        ("arm", run.arm),
        ("command", config.get("command")),
        ("engine serve command", flags.get("serve_command")),
        ("engine environment", flags.get("env") or None),
        ("sembench", run.sembench_version),
        ("semblend", run.semblend_version),
        (
            "commit",
            f"{run.git_sha}{' (changed)' if run.git_dirty else ''}" if run.git_sha else None,
        ),
        ("python", run.python_version),
        ("platform", environment.get("platform")),
        ("host", run.run_host),
        ("packages", ", ".join(f"{name} {version}" for name, version in packages.items()) or None),
    ]
    return tuple((name, str(value)) for name, value in found if value not in (None, ""))
