"""The ``sembench`` application: registers the commands and turns errors into exit codes.

A command is one file beside this one with one function; its line in `COMMANDS` is
all the registration there is. Exit codes: 0 done, 1 a check does not hold, 2 what
was given cannot be used, 3 the engine does not run with the required flags.
"""

from __future__ import annotations

import sys
from importlib import import_module

import typer

from sembench.cli.list_options import ListOptionsCommand
from sembench.errors import SemBenchError

COMMANDS: tuple[tuple[str, str], ...] = (
    ("build", "sembench.cli.build:build"),
    ("freeze", "sembench.cli.freeze:freeze"),
    ("verify-frozen", "sembench.cli.verify_frozen:verify_frozen"),
    ("audit-manifest", "sembench.cli.audit_manifest:audit_manifest"),
    ("run-offline", "sembench.cli.run_offline:run_offline"),
    ("run-live-sglang", "sembench.cli.run_live_sglang:run_live_sglang"),
    ("run-live-gateway", "sembench.cli.run_live_gateway:run_live_gateway"),
    ("run-load", "sembench.cli.run_load:run_load"),
    ("verify-endpoint", "sembench.cli.verify_endpoint:verify_endpoint"),
    ("engine-snapshot", "sembench.cli.engine_snapshot:engine_snapshot"),
    ("engine-window", "sembench.cli.engine_snapshot:engine_window"),
    ("merge-results", "sembench.cli.merge_results:merge_results"),
    ("calibrate-noise-floor", "sembench.cli.calibrate_noise_floor:calibrate_noise_floor"),
    ("summarize-engine-events", "sembench.cli.summarize_engine_events:summarize_engine_events"),
    (
        "collect-k8s-engine-events",
        "sembench.cli.collect_k8s_engine_events:collect_k8s_engine_events",
    ),
    ("assert-result-gates", "sembench.cli.assert_result_gates:assert_result_gates"),
    ("report", "sembench.cli.report:report"),
    ("compare", "sembench.cli.compare:compare"),
    ("roi", "sembench.cli.roi:roi"),
    ("mock-engine", "sembench.cli.mock_engine:mock_engine"),
)

app = typer.Typer(
    name="sembench",
    help="Measures reuse of K/V by any semantic cache, and cannot be talked into a figure.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

for _name, _target in COMMANDS:
    _module, _function = _target.split(":")
    app.command(_name, cls=ListOptionsCommand)(getattr(import_module(_module), _function))


def run() -> None:
    """Entry point of the command."""
    try:
        app()
    except SemBenchError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        # A path that cannot be read or written, whichever command was given it.
        where = f"{error.filename}: " if error.filename else ""
        typer.echo(f"error: {where}{error.strerror or error}", err=True)
        sys.exit(SemBenchError.exit_code)
