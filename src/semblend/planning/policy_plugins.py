"""Recompute policies from other distributions, in the entry point group `semblend.policies`.

An entry point names a module, or a class in one, that registers its policies with
`@register_policy` on import. A faulty plug-in loses its own policies and causes a warning. It never
stops an engine or changes an existing policy.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib.metadata import EntryPoint, entry_points

from semblend.core.errors import SettingsError
from semblend.planning.policies.base import POLICIES, RecomputePolicy

GROUP = "semblend.policies"
logger = logging.getLogger("semblend.policies")

_ORIGINS: dict[str, tuple[str, str]] = {}
"""Name and version of the distribution each policy came from."""


def load_plugins() -> None:
    """Import all plug-ins. Never raises."""
    try:
        points = sorted(entry_points(group=GROUP))
    except Exception:  # this reads the metadata of every distribution
        logger.warning("could not look for recompute policy plug-ins", exc_info=True)
        return
    for point in points:
        before = dict(POLICIES)
        try:
            loaded = point.load()
            _check(loaded, before)
        except (Exception, SystemExit) as error:
            POLICIES.clear()
            POLICIES.update(before)
            logger.warning(
                "recompute policies of %s (%s = %s) were not loaded: %s",
                " ".join(_origin(point)),
                point.name,
                point.value,
                error or type(error).__name__,
            )
            continue
        _ORIGINS.update(dict.fromkeys(POLICIES.keys() - before.keys(), _origin(point)))


def plugin_versions(policy: RecomputePolicy) -> dict[str, str]:
    """The distributions, with versions, of a policy and those inside it."""
    return dict(_ORIGINS[one.name] for one in _parts(policy) if one.name in _ORIGINS)


def _parts(policy: RecomputePolicy) -> Iterator[RecomputePolicy]:
    yield policy
    for one in policy.inside:
        yield from _parts(one)


def _check(loaded: object, before: dict[str, type[RecomputePolicy]]) -> None:
    """Check that all registrations are new, valid policies and nothing else changed."""
    from semblend.planning.policies.specs import parse

    for name, cls in before.items():
        if POLICIES.get(name) is not cls:
            raise SettingsError(f"it replaces the policy {name!r}")
    new = {name: cls for name, cls in POLICIES.items() if name not in before}
    for name, cls in new.items():
        if not (isinstance(cls, type) and issubclass(cls, RecomputePolicy) and is_dataclass(cls)):
            raise SettingsError(f"{name!r} is not a dataclass and RecomputePolicy")
        if not cls.__dataclass_params__.frozen:
            raise SettingsError(f"{name!r} is not frozen, but all requests share one object")
        if cls.dynamic is not RecomputePolicy.dynamic:
            raise SettingsError(f"{name!r} sets `dynamic`; declare `probes` instead")
        if inspect.isabstract(cls):
            raise SettingsError(f"{name!r} has no method `runs`")
        if not name.isidentifier():
            raise SettingsError(f"{name!r} cannot be written in a policy's text")
    for cls in new.values():
        for spec in (*cls.grid, *cls.candidates):
            parse(spec, POLICIES)
    where = getattr(loaded, "__module__", None) or getattr(loaded, "__name__", "")
    if not new and not any(cls.__module__ == where for cls in POLICIES.values()):
        raise SettingsError("it registers no policy; use @register_policy")


def _origin(point: EntryPoint) -> tuple[str, str]:
    return ("unknown", "0") if point.dist is None else (point.dist.name, point.dist.version)
