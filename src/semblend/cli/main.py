"""The `semblend` command. Each command lives in a file of its own and is named here."""

from __future__ import annotations

import typer

from semblend.cli.bench_lookup import bench_lookup
from semblend.cli.explain import explain
from semblend.cli.settings import settings

app = typer.Typer(
    name="semblend",
    help="Reuse the K/V of documents an engine has already read, wherever they stand.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
app.command()(explain)
app.command()(settings)
bench = typer.Typer(help="Measure SemBlend on this machine.", no_args_is_help=True)
app.add_typer(bench, name="bench")
bench.command("lookup")(bench_lookup)


def run() -> None:
    """Entry point."""
    app()


if __name__ == "__main__":
    run()
