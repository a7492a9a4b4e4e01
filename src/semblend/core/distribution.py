"""Whether the `semblend` that runs is this project's, by what the installation says about it.

The package index has another project of the same name, with a connector at the same import path.
Files and metadata of both can end up in one environment, and then nobody can say which code runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import unquote, urlsplit

from semblend.core.errors import ForeignDistributionError
from semblend.core.installing import install_command

PACKAGE = Path(__file__).resolve().parents[1]
_FIRST_FILE = "semblend/__init__.py"
_OUR_MARK = "semblend/core/distribution.py"
"""This file: whoever installed the running package and not this one is not this project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """What the installed distributions called semblend have to do with the running package."""

    foreign: tuple[str, ...] = ()
    """Those that installed the running package's files and are not this project."""
    beside: tuple[str, ...] = ()
    """Those that are installed elsewhere, while the running package is a tree of its own."""


def ownership(package: Path = PACKAGE) -> Ownership:
    """Look at every distribution called semblend. Never raises: no metadata, no objection."""
    foreign: list[str] = []
    beside: list[str] = []
    owned = False
    for distribution in distributions(name="semblend"):
        try:
            record = distribution.read_text("RECORD") or ""
            recorded = {line.partition(",")[0] for line in record.splitlines()}
            place = Path(str(distribution.locate_file(""))).resolve()
            said = f"semblend {distribution.version} in {place}"
            if _FIRST_FILE in recorded and place == package.parent:
                owned = True
                if _OUR_MARK not in recorded:
                    foreign.append(said)
            elif any(package.is_relative_to(tree) for tree in _editable_trees(distribution)):
                owned = True
            else:
                beside.append(said)
        except Exception:  # metadata is whatever somebody put there
            continue
    return Ownership(foreign=tuple(foreign), beside=() if owned else tuple(beside))


def require_this_distribution(extra: str) -> Ownership:
    """What was found, if nothing speaks against the running package.

    `extra` is the one that brings what the caller needs.

    Raises
    ------
    ForeignDistributionError
        Naming the distribution that installed the running package and is not this project.
    """
    found = ownership()
    if found.foreign:
        raise ForeignDistributionError(
            f"the semblend that runs here was installed by {' and '.join(found.foreign)}, which is "
            "another project of this name. Uninstall it, then install this one; "
            f"{install_command(extra)}"
        )
    return found


def _editable_trees(distribution: Distribution) -> Iterator[Path]:
    """The source tree of an editable installation."""
    stated = json.loads(distribution.read_text("direct_url.json") or "{}")
    if stated.get("dir_info", {}).get("editable"):
        yield Path(unquote(urlsplit(stated["url"]).path)).resolve()
