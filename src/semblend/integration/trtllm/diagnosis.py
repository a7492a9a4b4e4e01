"""What this installation of TensorRT-LLM would do with the connector, and why; nothing starts."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from semblend.integration.engine_versions import installed_version
from semblend.integration.findings import (
    Finding,
    any_refused,
    given_options,
    interfaces,
    not_installed,
    note,
    ok,
    own_installation,
    refused,
    refused_things,
)
from semblend.integration.trtllm import namespaces, upstream
from semblend.integration.trtllm.contract import contract_problems
from semblend.integration.trtllm.engine_facts import EngineFacts
from semblend.integration.trtllm.options import ConnectorOptions
from semblend.integration.trtllm.support import engine_refusals

_DEFAULT_BLOCK_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupQuestion:
    """What is to be judged: the connector's options and the engine it would be in."""

    config: Mapping[str, Any]
    model: str | None = None
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = 1
    tokens_per_block: int = _DEFAULT_BLOCK_TOKENS


def diagnose(question: SetupQuestion) -> list[Finding]:
    """Every check, in the order in which a start would meet them."""
    findings = [*own_installation("trtllm"), *_installation(), *_options(question)]
    if question.model is not None and not any_refused(findings, check="options"):
        findings += _engine(question, question.model)
    return findings


def _installation() -> Iterator[Finding]:
    version = installed_version("tensorrt_llm")
    if version is None or importlib.util.find_spec("tensorrt_llm") is None:
        yield not_installed("TensorRT-LLM", extra="trtllm")
        return
    yield note(
        "TensorRT-LLM",
        f"{version}: the adapter was never run end to end on any; see docs/trtllm.md",
    )
    module = upstream.connector_module()
    if module is None:
        names = ", ".join(upstream.CONNECTOR_MODULES)
        yield refused("interfaces", f"none of {names} can be imported")
        return
    yield from interfaces(contract_problems(module), asked=module.__name__)


def _options(question: SetupQuestion) -> Iterator[Finding]:
    options, mode = given_options(
        ConnectorOptions, question.config, certified="loads under a quality certificate, or exactly"
    )
    yield mode
    if options is not None and options.mode.segmented and options.ladder_socket is None:
        yield note(
            "ladders", "no ladder_socket: only clients in the engine's own process can climb"
        )


def _engine(question: SetupQuestion, model: str) -> Iterator[Finding]:
    options = ConnectorOptions.from_mapping(question.config)
    arguments = SimpleNamespace(
        model=model,
        dtype=question.dtype,
        quant_config=None,
        tensor_parallel_size=question.tensor_parallel_size,
        kv_cache_config=SimpleNamespace(
            dtype=question.kv_cache_dtype, tokens_per_block=question.tokens_per_block
        ),
    )
    facts = EngineFacts.of(arguments)
    namespace = namespaces.engine_namespace(facts, options, options.settings())
    if namespace.is_complete:
        yield ok("namespace", "every part is known")
    for part in namespace.unknown_parts:
        yield refused("namespace", f"{part} is not known: discovery only")
    refusals = engine_refusals(arguments, facts, options)
    if question.tensor_parallel_size > 1 and upstream.connector_module() is None:
        refusals = [one for one in refusals if "without MPI" not in one.feature]
    yield from refused_things("engine", refusals)
    yield from _certificate(facts, options)


def _certificate(facts: EngineFacts, options: ConnectorOptions) -> Iterator[Finding]:
    from semblend.integration.trtllm.setup import standing_of

    if options.mode.uncertified or not options.mode.segmented:
        return
    standing = standing_of(facts, options, options.settings())
    if standing.policy is None:
        detail = standing.detail or "none for this model"
        yield note("certificate", f"{detail}: no ladders")
    else:
        yield ok("certificate", standing.policy)
