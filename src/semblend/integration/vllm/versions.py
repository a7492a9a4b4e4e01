"""Which vLLM this adapter was written for; another minor version is refused.

The connector interface calls itself experimental and changes between minor versions, so
"newer" does not mean "compatible". `tests/integration/vllm/contracts` holds the base class's
signatures for every version named here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SUPPORTED = {"0.30": "run", "0.31": "run", "0.32": "run"}
"""Minor versions, and whether tests ran on them or only the contract was compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSupport:
    """What is known about one vLLM version."""

    version: str
    minor: str
    supported: bool
    verified: bool
    """Whether this adapter's tests ran on it."""


def judge(version: str) -> VersionSupport:
    """What this adapter knows about vLLM `version`."""
    match = re.match(r"(\d+\.\d+)", version)
    minor = match.group(1) if match else version
    return VersionSupport(
        version=version,
        minor=minor,
        supported=minor in SUPPORTED,
        verified=SUPPORTED.get(minor) == "run",
    )


def installed() -> VersionSupport:
    """The verdict on the installed vLLM."""
    import vllm

    return judge(vllm.__version__)
