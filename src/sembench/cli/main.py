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
"""Commands by group: a name, and the file beside this one with its function."""

app = typer.Typer(
    name="sembench",
    help="Measures reuse of K/V by any semantic cache, and cannot be talked into a figure.",
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
