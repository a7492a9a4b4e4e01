"""What a check of an installation came to: the words of `semblend doctor`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from semblend import __version__
from semblend.core.distribution import PACKAGE, require_this_distribution
from semblend.core.errors import ForeignDistributionError
from semblend.core.installing import install_command


class Verdict(StrEnum):
    """How one check came out."""

    OK = "ok"
    NOTE = "note"
    """Works, and there is something to know."""
    REFUSED = "refused"
    """K/V would not be loaded, or the engine would not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check and its outcome."""

    check: str
    verdict: Verdict
    detail: str


def any_refused(findings: Iterable[Finding], *, check: str | None = None) -> bool:
    """Whether a check came out as a refusal; any, or the one of this name."""
    return any(
        finding.verdict is Verdict.REFUSED and check in (None, finding.check)
        for finding in findings
    )


def own_installation(extra: str) -> Iterator[Finding]:
    """Which `semblend` runs here, and whether it is this project's."""
    try:
        found = require_this_distribution(extra)
    except ForeignDistributionError as error:
        yield Finding(check="semblend", verdict=Verdict.REFUSED, detail=str(error))
        return
    here = f"{__version__} in {PACKAGE}"
    for beside in found.beside:
        yield Finding(check="semblend", verdict=Verdict.NOTE, detail=f"{here}, beside {beside}")
    if not found.beside:
        yield Finding(check="semblend", verdict=Verdict.OK, detail=here)


def not_installed(engine: str, *, extra: str) -> Finding:
    """The engine is not here."""
    return Finding(
        check=engine,
        verdict=Verdict.REFUSED,
        detail=f"not installed in this environment; {install_command(extra)}",
    )


def interfaces(problems: Iterable[str], *, asked: str) -> Iterator[Finding]:
    """What is not as an adapter relies on in its engine; `asked` says what was looked at."""
    problems = list(problems)
    for problem in problems:
        yield Finding(check="interfaces", verdict=Verdict.REFUSED, detail=problem)
    if not problems:
        yield Finding(check="interfaces", verdict=Verdict.OK, detail=asked)


def findings_json(engine: str, findings: Iterable[Finding]) -> str:
    """One JSON object for machines."""
    findings = list(findings)
    rows = [{"check": f.check, "verdict": f.verdict.value, "detail": f.detail} for f in findings]
    return json.dumps({"engine": engine, "ok": not any_refused(findings), "findings": rows})
