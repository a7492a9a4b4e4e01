"""Writes the reference pages that come from code: docs/cli.md and docs/api.md.

    python scripts/reference.py

A test compares the pages with what this script writes.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path

import click
import typer

import semblend
from sembench.cli.main import app as sembench_app
from semblend.cli.main import app as semblend_app

DOCS = Path(__file__).resolve().parents[1] / "docs"
MADE = "<!-- Written by scripts/reference.py: `make reference`. -->\n"


def commands(
    group: click.Command, name: str, context: click.Context | None = None
) -> Iterator[tuple[str, click.Command]]:
    """Every command below `group` with its full name, in order."""
    here = group.context_class(group, info_name=name, parent=context)
    # Duck-typed, because typer brings its own click classes.
    if hasattr(group, "list_commands"):
        for part in group.list_commands(here):
            child = group.get_command(here, part)
            if child is not None and not child.hidden:
                yield from commands(child, f"{name} {part}", here)
    else:
        yield name, group


def first_sentences(docstring: str | None) -> str:
    """The first paragraph, on one line."""
    paragraph = inspect.cleandoc(docstring or "").split("\n\n")[0]
    return " ".join(paragraph.replace("\b", "").split())


def default_of(option: click.Parameter) -> str:
    """The value of an option that is not given."""
    value = option.default
    if value is None or callable(value) or value in ((), [], ""):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{getattr(value, 'value', value)}`"


def metavar(argument: click.Parameter) -> str:
    """An argument's name in a usage line."""
    name = (getattr(argument, "metavar", None) or argument.name or "").upper()
    return name if argument.required else f"[{name}]"


def cell(text: str) -> str:
    """Escape text for a table cell."""
    return " ".join(text.split()).replace("|", "\\|")


def command_section(name: str, command: click.Command) -> str:
    """One command: usage, what it does, its options."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [
        p
        for p in command.params
        if p.param_type_name == "option" and not p.hidden and p.name != "help"
    ]
    usage = " ".join([name, *(metavar(p) for p in arguments)])
    lines = [f"### `{name}`", "", first_sentences(command.help), "", f"    {usage}", ""]
    rows = [
        (f"`{metavar(p)}`", default_of(p), cell(getattr(p, "help", "") or "")) for p in arguments
    ]
    rows += [
        (
            ", ".join(f"`{text}`" for text in (*p.opts, *p.secondary_opts)),
            default_of(p),
            cell(p.help or ""),
        )
        for p in options
    ]
    if rows:
        lines += ["| Option | Default | What it does |", "| --- | --- | --- |"]
        lines += [f"| {option} | {default} | {what} |" for option, default, what in rows]
        lines.append("")
    return "\n".join(lines)


def cli_page() -> str:
    parts = [
        "# Commands\n",
        MADE,
        "Every command takes `--help`. Settings come from `SEMBLEND_*` variables as well: see "
        "[settings](settings.md).\n",
    ]
    for title, app in (("semblend", semblend_app), ("sembench", sembench_app)):
        parts.append(f"## {title}\n")
        group = typer.main.get_command(app)
        parts += [command_section(*found) for found in commands(group, title)]
    parts.append(
        "`semblend-sglang` and `semblend-trtllm` start those engines and pass every other option "
        "on: see [SGLang](sglang.md) and [TensorRT-LLM](trtllm.md).\n"
    )
    return "\n".join(parts)


def members(thing: type) -> Iterator[tuple[str, str]]:
    """(call, first paragraph) of a class's own public methods and properties."""
    for name, member in vars(thing).items():
        if name.startswith("_"):
            continue
        function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if isinstance(function, property):
            yield name, first_sentences(function.__doc__)
        elif inspect.isfunction(function) and function.__doc__:
            names = [p for p in inspect.signature(function).parameters if p not in ("self", "cls")]
            yield f"{name}({', '.join(names)})", first_sentences(function.__doc__)


def api_page() -> str:
    parts = [
        "# Python API\n",
        MADE,
        "What `import semblend` offers. It needs nothing heavier than numpy. The embedded engine "
        "is `semblend.engine` ([engine](engine.md)); the HTTP API is in [server](serve.md).\n",
    ]
    for name in semblend.__all__:
        thing = getattr(semblend, name)
        if not isinstance(thing, type):
            parts.append(f"## `{name}`\n\n{first_sentences(thing.__doc__)}\n")
            continue
        parts.append(f"## `{name}`\n\n{first_sentences(thing.__doc__)}\n")
        if dataclasses.is_dataclass(thing):
            fields = ", ".join(f"`{field.name}`" for field in dataclasses.fields(thing))
            parts.append(f"Fields: {fields}.\n")
        rows = list(members(thing))
        if rows:
            parts.append("| Member | What it does |\n| --- | --- |")
            parts[-1] += "".join(f"\n| `{call}` | {cell(what)} |" for call, what in rows) + "\n"
    return "\n".join(parts)


PAGES = {"cli.md": cli_page, "api.md": api_page}


def main() -> None:
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
