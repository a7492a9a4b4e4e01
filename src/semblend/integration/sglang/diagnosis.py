"""What this installation of SGLang would do with the backend, and why; nothing is started."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from semblend.core.architectures import EngineName
from semblend.integration.findings import (
    Finding,
    any_refused,
    given_options,
    interfaces,
    model_findings,
    not_installed,
    note,
    ok,
    own_installation,
    refused,
    refused_things,
)
from semblend.integration.sglang.options import BackendOptions
from semblend.integration.sglang.plugin import unseen
from semblend.integration.sglang.support import ATTENTION_BACKENDS, feature_refusals, resolved
from semblend.integration.sglang.versions import VERSIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupQuestion:
    """What is to be judged: the backend's options and how SGLang would be started."""

    config: Mapping[str, Any]
    arguments: tuple[str, ...] = ()
    """SGLang's own flags."""


def diagnose(question: SetupQuestion) -> list[Finding]:
    """Every check, in the order in which a start would meet them."""
    _, mode = given_options(
        BackendOptions,
        question.config,
        certified="loads under a quality certificate, else discovery only",
    )
    findings = [*own_installation("sglang"), *_installation(), mode]
    if any_refused(findings):
        return findings
    findings += _contract()
    if question.arguments:
        findings += _engine(question)
    return findings


def _installation() -> Iterator[Finding]:
    verdict = VERSIONS.installed()
    if verdict is None or importlib.util.find_spec("sglang") is None:
        yield not_installed("SGLang", extra="sglang")
        return
    yield VERSIONS.finding(verdict)
    unfound = unseen()
    yield refused("plugin", unfound) if unfound else ok("plugin", "found by SGLang's processes")


def _contract() -> Iterator[Finding]:
    # Asked of SGLang's sources, which takes seconds: it is imported for it.
    from semblend.integration.sglang.contract import contract_problems

    return interfaces(contract_problems(), asked="all that is relied on")


def _engine(question: SetupQuestion) -> Iterator[Finding]:
    from sglang.srt.server_args import prepare_server_args

    try:
        arguments = prepare_server_args(list(question.arguments))
        arguments.resolve_once()
    except (Exception, SystemExit) as error:
        yield refused("arguments", f"SGLang: {error}")
        return
    yield from refused_things("features", feature_refusals(arguments))
    yield _attention(arguments)
    tried = bool(question.config.get("unverified_architectures"))
    yield from model_findings(str(arguments.model_path), engine=EngineName.SGLANG, unverified=tried)


def _attention(arguments: Any) -> Finding:
    cfg = resolved(arguments)
    chosen = getattr(cfg, "prefill_attention_backend", None) or cfg.attention_backend
    if chosen is None:
        return note("attention", "chosen by SGLang when it starts")
    if chosen not in ATTENTION_BACKENDS:
        return refused("attention", f"{chosen}: known are {', '.join(ATTENTION_BACKENDS)}")
    if chosen == "torch_native":
        return ok("attention", chosen)
    return note("attention", f"{chosen}: not run by the tests; passes are tried at start")
