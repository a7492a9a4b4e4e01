"""Options that take several values after one flag."""

import typer
from typer.testing import CliRunner

from sembench.terminal.list_options import ListOptionsCommand, spread_list_options

MANY = frozenset({"--datasets", "-d"})


def test_values_after_a_repeatable_flag_are_spread():
    assert spread_list_options(["--datasets", "a", "b", "--seed", "1"], MANY) == [
        "--datasets", "a", "--datasets", "b", "--seed", "1",
    ]  # fmt: skip


def test_other_flags_and_repeated_flags_stay_as_they_are():
    for arguments in (
        ["--seed", "1", "positional"],
        ["--datasets", "a", "--datasets", "b"],
        ["-d", "a"],
        [],
        ["--datasets"],
        ["--datasets", "a", "--", "--datasets", "b", "c"],
    ):
        assert spread_list_options(arguments, MANY) == arguments


def test_a_command_takes_both_ways():
    app = typer.Typer()

    @app.command(cls=ListOptionsCommand)
    def show(datasets: list[str] = typer.Option(), number: int = 0) -> None:  # noqa: B008
        typer.echo(f"{datasets} {number}")

    for arguments in (
        ["--datasets", "a", "b", "--number", "3"],
        ["--datasets", "a", "--datasets", "b", "--number", "3"],
        ["--number", "3", "--datasets", "a", "b"],
        ["--datasets=a", "--datasets", "b", "--number=3"],
    ):
        assert CliRunner().invoke(app, arguments).output == "['a', 'b'] 3\n"
