"""Which versions of an engine an adapter was written for.

Engines change the interfaces adapters use between releases, so "newer" does not mean
"compatible": only versions that are listed are known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata

from semblend.integration.findings import Finding, note, ok, refused
from semblend.integration.refusals import Refusal

RUN = "run"
"""The adapter's tests ran on it."""
READ = "read"
"""Its interfaces were compared, and it was not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSupport:
    """What is known about one version of an engine."""

    version: str
    supported: bool
    verified: bool
    """Whether the adapter's tests ran on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineVersions:
    """The versions of one engine."""

    engine: str
    packages: tuple[str, ...]
    """The distributions it comes in."""
    known: Mapping[str, str]
    """Releases, and whether each was run or read."""
    release_of: Callable[[str], str]
    """The release that a version belongs to."""

    def judge(self, version: str) -> VersionSupport:
        """What the adapter knows about a version."""
        how = self.known.get(self.release_of(version))
        return VersionSupport(version=version, supported=how is not None, verified=how == RUN)

    def installed(self) -> VersionSupport | None:
        """What is known about the one that is installed here, if one is. Imports nothing of it."""
        version = installed_version(*self.packages)
        return None if version is None else self.judge(version)

    def refusals(self, version: str | None) -> list[Refusal]:
        """Empty for a version whose interfaces are known; None is one that nobody could tell."""
        if version is not None and self.judge(version).supported:
            return []
        shown = "an unknown version" if version is None else version
        remedy = "its interfaces are not known here"
        return [Refusal(feature=f"{self.engine} {shown}", remedy=remedy)]

    def finding(self, support: VersionSupport) -> Finding:
        """What `semblend doctor` prints about a version."""
        if not support.supported:
            known = f"its interfaces are not known here; known are {', '.join(self.known)}"
            return refused(self.engine, f"{support.version}: {known}")
        if not support.verified:
            compared = "its interfaces were compared, it was not run"
            return note(self.engine, f"{support.version}: {compared}")
        return ok(self.engine, f"{support.version}: tested")


def installed_version(*packages: str) -> str | None:
    """The version of the first of these distributions that is installed here."""
    for name in packages:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None
