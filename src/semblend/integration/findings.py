"""Results of checking an installation, as `semblend doctor` prints them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from semblend import __version__
from semblend.core.architectures import EngineName, rows_of
from semblend.core.distribution import PACKAGE, require_this_distribution
from semblend.core.errors import ForeignDistributionError, SemBlendError
from semblend.core.installing import install_command
from semblend.integration.options import VariableOptions
from semblend.integration.refusals import (
    Refusal,
    architecture_names,
    architecture_refusals,
    rotary_refusals,
)

Options = TypeVar("Options", bound=VariableOptions)


class Verdict(StrEnum):
    """The result of one check."""

    OK = "ok"
    NOTE = "note"
    """Works, but note something."""
    REFUSED = "refused"
    """K/V would not be loaded; with SEMBLEND_STRICT_START the engine would not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str
    verdict: Verdict
    detail: str


def ok(check: str, detail: str) -> Finding:
    """A check that came out well."""
    return Finding(check=check, verdict=Verdict.OK, detail=detail)


def note(check: str, detail: str) -> Finding:
    """Something to know."""
    return Finding(check=check, verdict=Verdict.NOTE, detail=detail)


def refused(check: str, detail: str) -> Finding:
    """Something that stands in the way."""
    return Finding(check=check, verdict=Verdict.REFUSED, detail=detail)


def any_refused(findings: Iterable[Finding], *, check: str | None = None) -> bool:
    """Whether any check, or the one of this name, was refused."""
    return any(
        finding.verdict is Verdict.REFUSED and check in (None, finding.check)
        for finding in findings
    )


def own_installation(extra: str) -> Iterator[Finding]:
    """Which `semblend` runs here, and whether it is this project's."""
    try:
        found = require_this_distribution(extra)
    except ForeignDistributionError as error:
        yield refused("semblend", str(error))
        return
    here = f"{__version__} in {PACKAGE}"
    for beside in found.beside:
        yield note("semblend", f"{here}, beside {beside}")
    if not found.beside:
        yield ok("semblend", here)


def not_installed(engine: str, *, extra: str) -> Finding:
    return refused(engine, f"not installed in this environment; {install_command(extra)}")


def interfaces(problems: Iterable[str], *, asked: str) -> Iterator[Finding]:
    """Report engine interfaces that differ from what the adapter needs; `asked` names the check."""
    problems = list(problems)
    for problem in problems:
        yield refused("interfaces", problem)
    if not problems:
        yield ok("interfaces", asked)


def given_options(
    options: type[Options], config: Mapping[str, Any], *, certified: str
) -> tuple[Options | None, Finding]:
    """Report an adapter's options and what their mode means, or what is wrong with them.

    `certified` says what a mode does that needs a certificate, or that needs none.
    """
    try:
        chosen = options.from_mapping(config)
        chosen.settings()
    except SemBlendError as error:
        return None, refused("options", str(error))
    mode = chosen.mode
    if mode.uncertified:
        return chosen, note("mode", f"{mode.value}: needs no certificate; every answer says so")
    if mode.loads:
        return chosen, ok("mode", f"{mode.value}: {certified}")
    return chosen, note("mode", f"{mode.value}: nothing is loaded")


def refused_things(check: str, refusals: Iterable[Refusal]) -> Iterator[Finding]:
    """Report everything that is refused, or that nothing is."""
    refusals = list(refusals)
    for refusal in refusals:
        yield refused(check, str(refusal))
    if not refusals:
        yield ok(check, "nothing is refused")


def model_findings(name: str, *, engine: EngineName, unverified: bool) -> Iterator[Finding]:
    """Whether a model's architecture was seen to work, and whether its K can be moved.

    `unverified` tries architectures that were not.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(name, local_files_only=Path(name).is_dir())
    except Exception as error:
        yield refused("model", f"{name}: {error}")
        return
    names = architecture_names(config)
    refusals = architecture_refusals(config, engine=engine, unverified=unverified)
    for refusal in refusals:
        yield refused("architecture", str(refusal))
    if not refusals:
        tested = any(rows_of(names, engine))
        yield (ok if tested else note)("architecture", ", ".join(names) or "unknown")
    by_layer = engine is EngineName.VLLM
    refusals = rotary_refusals(config.get_text_config(), by_layer=by_layer)
    if refusals:
        yield refused("rotary", "; ".join(map(str, refusals)))
    else:
        yield ok("rotary", "movable; proven at start")


def findings_json(engine: str, findings: Iterable[Finding]) -> str:
    """One JSON object for machines."""
    findings = list(findings)
    rows = [{"check": f.check, "verdict": f.verdict.value, "detail": f.detail} for f in findings]
    return json.dumps({"engine": engine, "ok": not any_refused(findings), "findings": rows})
