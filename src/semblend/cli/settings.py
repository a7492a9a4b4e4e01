"""`semblend settings`: every setting with its variable, value and meaning."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from semblend.core.settings import Settings, variable
from semblend.planning.policies.base import policy_from_spec
from semblend.terminal.tables import output, table


def settings(
    file: Annotated[Path | None, typer.Option(help="Read a JSON or TOML file instead.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table for docs/settings.md.")
    ] = False,
) -> None:
    """Show the current settings and what they mean."""
    console = output()
    if markdown:
        console.print(settings_table_markdown(), soft_wrap=True, highlight=False, markup=False)
        return
    current = Settings.from_env() if file is None else Settings.from_file(file)
    policy_from_spec(current.recompute_policy)  # report an unknown policy here
    if as_json:
        values = {name: _plain(getattr(current, name)) for name in Settings.shown()}
        values["namespace_secret"] = "set" if current.namespace_secret else ""
        console.print(json.dumps(values), soft_wrap=True, highlight=False, markup=False)
        return
    shown_table = table("variable", "value", "default", "what it does", lines=True)
    for name, field in Settings.shown().items():
        value = _plain(getattr(current, name))
        if name == "namespace_secret" and value:
            value = "(set)"
        shown = escape(str(value))
        if value != _plain(field.default):
            shown = f"[bold]{shown}[/]"
        default = escape(str(_plain(field.default)))
        shown_table.add_row(variable(name), shown, default, escape(Settings.documented(name)))
    console.print(shown_table)


def settings_table_markdown() -> str:
    """The table in docs/settings.md. A test compares the two."""
    lines = ["| Variable | Default | What it does |", "| --- | --- | --- |"]
    for name, field in Settings.shown().items():
        default = f"`{_plain(field.default)}`" if _plain(field.default) != "" else "empty"
        lines.append(f"| `{variable(name)}` | {default} | {Settings.documented(name)} |")
    return "\n".join(lines)


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    return value.value if isinstance(value, Enum) else value
