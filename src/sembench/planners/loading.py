"""Resolves ``--planner`` to a planner."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

from sembench import plugins
from sembench.errors import PlannerError
from sembench.planners.base import Planner, PlannerSettings
from sembench.plugins import load_plugin

BUILT_IN = {
    "semblend": "sembench.planners.semblend_planner:SemBlendPlanner",
    "oracle": "sembench.planners.oracle:OraclePlanner",
    "exact-block": "sembench.planners.exact_block:ExactBlockPlanner",
}
_METHODS = ("register", "forget", "plan", "describe")


def planner_class(name: str) -> type[Planner]:
    """Find the class: built in, from a plug-in, or an adapter named ``module:Class``.

    Raises
    ------
    PlannerError
        If there is no such planner, or it lacks a method of the interface.
    """
    if name not in BUILT_IN and ":" not in name:
        plugged = load_plugin(plugins.PLANNERS, name)
        if plugged is not None:
            return _checked(name, plugged)
    target = BUILT_IN.get(name, name)
    module_name, separator, class_name = target.partition(":")
    if not separator:
        raise PlannerError(
            f"--planner: {name!r} is neither one of {', '.join(BUILT_IN)} nor module:Class"
        )
    try:
        found: Any = getattr(import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise PlannerError(f"--planner: {name!r} cannot be loaded ({error})") from error
    return _checked(name, found)


def _checked(name: str, found: Any) -> type[Planner]:
    missing = [method for method in _METHODS if not callable(getattr(found, method, None))]
    if missing:
        raise PlannerError(f"--planner: {name!r} has no method {missing[0]!r}")
    return cast("type[Planner]", found)


def make_planner(name: str, settings: PlannerSettings) -> Planner:
    return planner_class(name)(settings)
