"""Which SGLang this adapter was written for; another version is refused.

SGLang's cache interfaces change between patch releases (0.5.22 removed what 0.5.20
had), so "newer" is not "compatible". `contract` asks the installed one in detail.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata

SUPPORTED = {"0.5.22": "read", "0.5.23": "run"}
"""Versions, and whether the tests ran on one or its sources were compared only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSupport:
    """What is known about one version of SGLang."""

    version: str
    supported: bool
    verified: bool
    """Whether this adapter's tests were run on it."""


def judge(version: str) -> VersionSupport:
    """What this adapter knows about SGLang `version`."""
    match = re.match(r"\d+\.\d+\.\d+", version)
    release = match.group(0) if match else version
    # A post release or a local build may differ in any file: only plain releases are known.
    known = SUPPORTED.get(release) if release == version.partition("+")[0] else None
    return VersionSupport(version=version, supported=known is not None, verified=known == "run")


def installed() -> VersionSupport | None:
    """The verdict on the SGLang that is installed here, if one is. Imports nothing of it."""
    try:
        return judge(metadata.version("sglang"))
    except metadata.PackageNotFoundError:
        return None
