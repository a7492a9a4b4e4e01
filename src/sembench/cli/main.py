"""The ``sembench`` application: registers the commands and turns errors into exit codes.

Each command is a function in its own file beside this one; a line in `COMMANDS`
registers it. Exit codes: 0 success, 1 a check failed, 2 unusable input, 3 the engine
does not run with the required flags.
"""

from __future__ import annotations

import sys
from importlib import import_module

import typer

from sembench.errors import SemBenchError
from sembench.terminal.list_options import ListOptionsCommand

COMMANDS: dict[str, tuple[tuple[str, str], ...]] = {
    "Manifests": (
        ("build", "build:build"),
        ("freeze", "freeze:freeze"),
        ("verify-frozen", "verify_frozen:verify_frozen"),
        ("audit-manifest", "audit_manifest:audit_manifest"),
        ("list", "list_known:list_known"),
    ),
    "Runs": (
        ("run-offline", "run_offline:run_offline"),
        ("run-live-gateway", "run_live_gateway:run_live_gateway"),
        ("run-live-sglang", "run_live_sglang:run_live_sglang"),
        ("run-load", "run_load:run_load"),
        ("run-turns-offline", "run_turns:run_turns_offline"),
        ("run-turns", "run_turns:run_turns"),
        ("calibrate-noise-floor", "calibrate_noise_floor:calibrate_noise_floor"),
    ),
    "Engines": (
        ("verify-endpoint", "verify_endpoint:verify_endpoint"),
        ("engine-snapshot", "engine_snapshot:engine_snapshot"),
        ("engine-window", "engine_snapshot:engine_window"),
        ("summarize-engine-events", "summarize_engine_events:summarize_engine_events"),
        ("collect-k8s-engine-events", "collect_k8s_engine_events:collect_k8s_engine_events"),
        ("mock-engine", "mock_engine:mock_engine"),
    ),
    "Results": (
        ("assert-result-gates", "assert_result_gates:assert_result_gates"),
        ("merge-results", "merge_results:merge_results"),
        ("report", "report:report"),
        ("compare", "compare:compare"),
        ("roi", "roi:roi"),
    ),
}
"""Commands by group: the name, and the module beside this one that holds its function."""

app = typer.Typer(
    name="sembench",
    help="Measures how much K/V a semantic cache really reuses, counting only confirmed reuse.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

for _group, _commands in COMMANDS.items():
    for _name, _target in _commands:
        _module, _function = _target.split(":")
        app.command(_name, cls=ListOptionsCommand, rich_help_panel=_group)(
            getattr(import_module(f"sembench.cli.{_module}"), _function)
        )


def run() -> None:
    try:
        app()
    except SemBenchError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        # Some command was given a path that cannot be read or written.
        where = f"{error.filename}: " if error.filename else ""
        typer.echo(f"error: {where}{error.strerror or error}", err=True)
        sys.exit(SemBenchError.exit_code)
