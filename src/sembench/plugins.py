"""Plug-ins: what other distributions add to SemBench through entry points.

=======================  ==============================================================
Group                    What an entry point names
=======================  ==============================================================
``sembench.transforms``  a :class:`~sembench.transforms.base.Transform` class
``sembench.profiles``    a callable that takes the keywords of ``load_profile`` and
                         returns a source
``sembench.stories``     a callable that takes ``seed``, ``index``, ``limits`` and
                         ``library`` and returns a story
``sembench.planners``    a planner class
=======================  ==============================================================

Plug-ins are loaded only when asked for by name, so a broken one affects nobody else.
They cannot take the name of something built in.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from sembench.errors import UsageError

TRANSFORMS = "sembench.transforms"
PROFILES = "sembench.profiles"
STORIES = "sembench.stories"
PLANNERS = "sembench.planners"


def plugin_points(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name; of duplicates, the first by distribution."""
    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=group), key=lambda p: (p.name, _origin(p))):
        found.setdefault(point.name, point)
    return found


def load_plugin(group: str, name: str) -> Any | None:
    """Load the object a plug-in's entry point names; None if there is no such plug-in.

    Raises
    ------
    UsageError
        If it cannot be loaded; the message names the plug-in and its distribution.
    """
    point = plugin_points(group).get(name)
    if point is None:
        return None
    try:
        return point.load()
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"the plug-in {name!r} of {_origin(point)} ({point.value}) cannot be loaded: "
            f"{error or type(error).__name__}"
        ) from error


def _origin(point: EntryPoint) -> str:
    return "an unknown distribution" if point.dist is None else point.dist.name
