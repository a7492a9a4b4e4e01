"""``sembench list``: what you can choose from, plug-ins included."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from sembench import plugins
from sembench.conversations import STORIES
from sembench.gates.table import GATES
from sembench.planners import BUILT_IN
from sembench.profiles import PROFILES
from sembench.profiles.published import PUBLISHED
from sembench.transforms.registry import TRANSFORMS


class Known(StrEnum):
    TRANSFORMS = "transforms"
    GATES = "gates"
    PROFILES = "profiles"
    PLANNERS = "planners"
    DATASETS = "datasets"


def list_known(what: Annotated[Known, typer.Argument(help="What to list.")]) -> None:
    """List transforms, gates, profiles, planners or published datasets with what each is."""
    for name, summary in sorted(_LISTED[what]().items()):
        typer.echo(f"{name:48} {summary}")


def _transforms() -> dict[str, str]:
    own = {name: f"[{each.reuse}] {each.summary}" for name, each in TRANSFORMS.items()}
    return {**_plugged(plugins.TRANSFORMS), **own}


def _gates() -> dict[str, str]:
    return {"--" + gate.name.replace("_", "-"): gate.help for gate in GATES}


def _profiles() -> dict[str, str]:
    stories = dict.fromkeys(STORIES, "multi-turn conversations, for run-turns")
    return {
        **_plugged(plugins.PROFILES),
        **_plugged(plugins.STORIES),
        **PROFILES,
        **stories,
    }


def _planners() -> dict[str, str]:
    return {**_plugged(plugins.PLANNERS), **BUILT_IN}


def _datasets() -> dict[str, str]:
    return {
        name: f"{each.title}; fields {each.fields}; "
        + (f"hub: {each.hub}" if each.hub else "files only")
        for name, each in PUBLISHED.items()
    }


def _plugged(group: str) -> dict[str, str]:
    return {name: f"plug-in: {point.value}" for name, point in plugins.plugin_points(group).items()}


_LISTED = {
    Known.TRANSFORMS: _transforms,
    Known.GATES: _gates,
    Known.PROFILES: _profiles,
    Known.PLANNERS: _planners,
    Known.DATASETS: _datasets,
}
