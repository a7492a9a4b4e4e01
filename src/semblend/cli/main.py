"""The `semblend` command. Each subcommand has its own file and is registered here."""

from __future__ import annotations

from typing import Annotated

import typer

from semblend import __version__
from semblend.cli.bench_lookup import bench_lookup
from semblend.cli.bench_prefill import bench_prefill
from semblend.cli.certificates import certificates
from semblend.cli.certify import certify
from semblend.cli.demo import demo
from semblend.cli.doctor import doctor
from semblend.cli.explain import explain
from semblend.cli.fleet import fleet
from semblend.cli.leaderboard import leaderboard
from semblend.cli.redteam import redteam
from semblend.cli.report import report
from semblend.cli.route import route
from semblend.cli.serve import serve
from semblend.cli.settings import settings
from semblend.terminal.command_group import Commands

app = typer.Typer(
    name="semblend",
    help="Reuse the K/V of documents an LLM engine has already read, anywhere in the prompt.",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"semblend {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Options of `semblend` itself."""


app.command()(demo)
app.command()(serve)
app.command()(route)
app.command()(fleet)
app.command()(explain)
app.command()(report)
app.command()(settings)
app.command()(certify)
app.command()(leaderboard)
app.command()(redteam)
bench = typer.Typer(help="Measure SemBlend on this machine.", no_args_is_help=True)
app.add_typer(bench, name="bench")
app.add_typer(doctor, name="doctor")
app.add_typer(certificates, name="certificates")
bench.command("lookup")(bench_lookup)
bench.command("prefill")(bench_prefill)


def run() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    run()
