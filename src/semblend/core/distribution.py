"""Check, by installation metadata, that the running `semblend` is this project's.

The package index has a different project with the same name and a connector at the same import
path. Both can end up mixed in one environment, and then it is unclear which code runs.
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
"""This file. A distribution that installed the running package without it is not this project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """How the installed distributions named semblend relate to the running package."""

    foreign: tuple[str, ...] = ()
    """Distributions that installed the running package's files and are not this project."""
    beside: tuple[str, ...] = ()
    """Distributions installed elsewhere, while the running package is a separate tree."""


def ownership(package: Path = PACKAGE) -> Ownership:
    """Examine every distribution named semblend. Never raises: missing metadata is no objection."""
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
        except Exception:  # metadata can contain anything
            continue
    return Ownership(foreign=tuple(foreign), beside=() if owned else tuple(beside))


def require_this_distribution(extra: str) -> Ownership:
    """Check that the running package is ours, and return what was found.

    `extra` is the one the caller needs.

    Raises
    ------
    ForeignDistributionError
        Naming the foreign distribution that installed the running package.
    """
    found = ownership()
    if found.foreign:
        raise ForeignDistributionError(
            f"the running semblend was installed by {' and '.join(found.foreign)}, which is "
            "another project of this name. Uninstall it, then install this one; "
            f"{install_command(extra)}"
        )
    return found


def _editable_trees(distribution: Distribution) -> Iterator[Path]:
    """The source trees of an editable installation."""
    stated = json.loads(distribution.read_text("direct_url.json") or "{}")
    if stated.get("dir_info", {}).get("editable"):
        yield Path(unquote(urlsplit(stated["url"]).path)).resolve()
