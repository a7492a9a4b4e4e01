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
        yield Finding(check="semblend", verdict=Verdict.REFUSED, detail=str(error))
        return
    here = f"{__version__} in {PACKAGE}"
    for beside in found.beside:
        yield Finding(check="semblend", verdict=Verdict.NOTE, detail=f"{here}, beside {beside}")
    if not found.beside:
        yield Finding(check="semblend", verdict=Verdict.OK, detail=here)


def not_installed(engine: str, *, extra: str) -> Finding:
    return Finding(
        check=engine,
        verdict=Verdict.REFUSED,
        detail=f"not installed in this environment; {install_command(extra)}",
    )


def interfaces(problems: Iterable[str], *, asked: str) -> Iterator[Finding]:
    """Report engine interfaces that differ from what the adapter needs; `asked` names the check."""
    problems = list(problems)
    for problem in problems:
        yield Finding(check="interfaces", verdict=Verdict.REFUSED, detail=problem)
    if not problems:
        yield Finding(check="interfaces", verdict=Verdict.OK, detail=asked)


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
        return None, Finding(check="options", verdict=Verdict.REFUSED, detail=str(error))
    mode, verdict, detail = chosen.mode, Verdict.NOTE, "nothing is loaded"
    if mode.uncertified:
        detail = "needs no certificate; every answer says so"
    elif mode.loads:
        verdict, detail = Verdict.OK, certified
    return chosen, Finding(check="mode", verdict=verdict, detail=f"{mode.value}: {detail}")


def refused_things(check: str, refusals: Iterable[Refusal]) -> Iterator[Finding]:
    """Report everything that is refused, or that nothing is."""
    refusals = list(refusals)
    for refusal in refusals:
        yield Finding(check=check, verdict=Verdict.REFUSED, detail=str(refusal))
    if not refusals:
        yield Finding(check=check, verdict=Verdict.OK, detail="nothing is refused")


def model_findings(name: str, *, engine: EngineName, unverified: bool) -> Iterator[Finding]:
    """Whether a model's architecture was seen to work, and whether its K can be moved.

    `unverified` tries architectures that were not.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(name, local_files_only=Path(name).is_dir())
    except Exception as error:
        yield Finding(check="model", verdict=Verdict.REFUSED, detail=f"{name}: {error}")
        return
    names = architecture_names(config)
    refusals = architecture_refusals(config, engine=engine, unverified=unverified)
    for refusal in refusals:
        yield Finding(check="architecture", verdict=Verdict.REFUSED, detail=str(refusal))
    if not refusals:
        verdict = Verdict.OK if any(rows_of(names, engine)) else Verdict.NOTE
        yield Finding(check="architecture", verdict=verdict, detail=", ".join(names) or "unknown")
    by_layer = engine is EngineName.VLLM
    refusals = rotary_refusals(config.get_text_config(), by_layer=by_layer)
    verdict = Verdict.REFUSED if refusals else Verdict.OK
    detail = "; ".join(map(str, refusals)) or "movable; proven at start"
    yield Finding(check="rotary", verdict=verdict, detail=detail)


def findings_json(engine: str, findings: Iterable[Finding]) -> str:
    """One JSON object for machines."""
    findings = list(findings)
    rows = [{"check": f.check, "verdict": f.verdict.value, "detail": f.detail} for f in findings]
    return json.dumps({"engine": engine, "ok": not any_refused(findings), "findings": rows})
