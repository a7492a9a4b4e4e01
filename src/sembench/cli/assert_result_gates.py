"""``sembench assert-result-gates``: exit 0 where a result holds, 1 where it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sembench.calibration import read_calibration
from sembench.engine_events import EngineSummary
from sembench.errors import ResultError, UsageError
from sembench.gates import check
from sembench.gates.check import requested
from sembench.gates.table import BY_NAME, Threshold
from sembench.json_text import parse_json
from sembench.results import read_result


def _help(name: str) -> str:
    return BY_NAME[name].help


def assert_result_gates(
    result: Annotated[Path, typer.Option(help="Result file.")],
    engine_summary: Annotated[
        list[Path] | None, typer.Option(help="Engine summary, repeatable.")
    ] = None,
    min_quality_pass_rate: Annotated[
        float | None, typer.Option(help=_help("min_quality_pass_rate"))
    ] = None,
    min_semantic_placement_rate: Annotated[
        float | None, typer.Option(help=_help("min_semantic_placement_rate"))
    ] = None,
    min_backend_confirmed_block_rate: Annotated[
        float | None, typer.Option(help=_help("min_backend_confirmed_block_rate"))
    ] = None,
    min_materialization_events: Annotated[
        int | None, typer.Option(help=_help("min_materialization_events"))
    ] = None,
    min_materialized_tokens: Annotated[
        int | None, typer.Option(help=_help("min_materialized_tokens"))
    ] = None,
    min_materialized_units: Annotated[
        int | None, typer.Option(help=_help("min_materialized_units"))
    ] = None,
    max_negative_control_confirmed_rate: Annotated[
        float | None, typer.Option(help=_help("max_negative_control_confirmed_rate") + " [0]")
    ] = None,
    max_negative_control_semantic_placement_rate: Annotated[
        float | None,
        typer.Option(help=_help("max_negative_control_semantic_placement_rate") + " [1]"),
    ] = None,
    require_materialized_reuse: Annotated[
        bool,
        typer.Option("--require-materialized-reuse", help=_help("require_materialized_reuse")),
    ] = False,
    require_no_engine_errors: Annotated[
        bool, typer.Option("--require-no-engine-errors", help=_help("require_no_engine_errors"))
    ] = False,
    min_blended_ttft_speedup: Annotated[
        float | None, typer.Option(help=_help("min_blended_ttft_speedup"))
    ] = None,
    max_negative_control_speedup_deviation: Annotated[
        float | None, typer.Option(help=_help("max_negative_control_speedup_deviation"))
    ] = None,
    require_contamination_check: Annotated[
        bool,
        typer.Option("--require-contamination-check", help=_help("require_contamination_check")),
    ] = False,
    noise_floor_calibration: Annotated[
        Path | None,
        typer.Option(
            help="Calibration file: the ROUGE-L of warm against cold is judged beside it, and "
            "must not be far above it either."
        ),
    ] = None,
    max_warm_vs_cold_rouge_drop: Annotated[
        float | None, typer.Option(help=_help("max_warm_vs_cold_rouge_drop"))
    ] = None,
    max_donor_fact_leak_rate: Annotated[
        float | None, typer.Option(help=_help("max_donor_fact_leak_rate"))
    ] = None,
    max_unconfirmed_claim_rate: Annotated[
        float | None, typer.Option(help=_help("max_unconfirmed_claim_rate"))
    ] = None,
    max_request_error_rate: Annotated[
        float | None, typer.Option(help=_help("max_request_error_rate"))
    ] = None,
    allow_missing: Annotated[
        bool,
        typer.Option("--allow-missing", help="A metric that is absent does not fail its gate."),
    ] = False,
    output: Annotated[Path | None, typer.Option(help="File for the verdict as well.")] = None,
) -> None:
    """Hold a result to gates. An absent metric of a requested gate fails."""
    thresholds: dict[str, Threshold | None] = {
        "min_quality_pass_rate": min_quality_pass_rate,
        "min_semantic_placement_rate": min_semantic_placement_rate,
        "min_backend_confirmed_block_rate": min_backend_confirmed_block_rate,
        "min_materialization_events": min_materialization_events,
        "min_materialized_tokens": min_materialized_tokens,
        "min_materialized_units": min_materialized_units,
        "max_negative_control_confirmed_rate": max_negative_control_confirmed_rate,
        "max_negative_control_semantic_placement_rate": (
            max_negative_control_semantic_placement_rate
        ),
        "require_materialized_reuse": True if require_materialized_reuse else None,
        "require_no_engine_errors": 0 if require_no_engine_errors else None,
        "min_blended_ttft_speedup": min_blended_ttft_speedup,
        "max_negative_control_speedup_deviation": max_negative_control_speedup_deviation,
        "require_contamination_check": 0.0 if require_contamination_check else None,
        "max_warm_vs_cold_rouge_drop": max_warm_vs_cold_rouge_drop,
        "max_donor_fact_leak_rate": max_donor_fact_leak_rate,
        "max_unconfirmed_claim_rate": max_unconfirmed_claim_rate,
        "max_request_error_rate": max_request_error_rate,
    }
    paths = engine_summary or []
    verdict = check(
        read_result(result),
        [_read_summary(path) for path in paths],
        requested(thresholds),
        calibration=None
        if noise_floor_calibration is None
        else read_calibration(noise_floor_calibration),
        allow_missing=allow_missing,
        result_name=str(result),
        summary_names=[str(path) for path in paths],
    )
    text = json.dumps(verdict.to_dict(), indent=2)
    typer.echo(text)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text + "\n", encoding="utf-8")
    if not verdict.passed:
        raise typer.Exit(1)


def _read_summary(path: Path) -> EngineSummary:
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--engine-summary: {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ResultError(f"{path}: not JSON ({error})") from error
    return EngineSummary.from_dict(data, where=str(path))
