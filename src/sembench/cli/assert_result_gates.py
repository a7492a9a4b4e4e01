"""``sembench assert-result-gates``: exit 0 if a result passes its gates, 1 if it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sembench.comparing.calibration import read_calibration
from sembench.engine_events import EngineSummary
from sembench.errors import ResultError, UsageError
from sembench.gates import check
from sembench.gates.check import requested
from sembench.gates.table import Threshold
from sembench.json_text import parse_json
from sembench.results import read_result
from sembench.terminal.gate_flags import with_gates


@with_gates
def assert_result_gates(
    thresholds: dict[str, Threshold | None],
    *,
    result: Annotated[Path, typer.Option(help="Result file.")],
    engine_summary: Annotated[
        list[Path] | None, typer.Option(help="Engine summary; repeatable.")
    ] = None,
    noise_floor_calibration: Annotated[
        Path | None,
        typer.Option(
            help="Calibration file. Compares the warm-against-cold ROUGE-L with this noise floor; "
            "a value far above the floor fails too."
        ),
    ] = None,
    allow_missing: Annotated[
        bool,
        typer.Option("--allow-missing", help="Do not fail a gate whose metric is absent."),
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Also write the verdict to this file.")
    ] = None,
) -> None:
    """Check a result against gates. A requested gate whose metric is absent fails."""
    paths = engine_summary or []
    gate_result = check(
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
    text = json.dumps(gate_result.to_dict(), indent=2)
    typer.echo(text)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text + "\n", encoding="utf-8")
    if not gate_result.passed:
        raise typer.Exit(1)


def _read_summary(path: Path) -> EngineSummary:
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--engine-summary: {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ResultError(f"{path}: not JSON ({error})") from error
    return EngineSummary.from_dict(data, where=str(path))
