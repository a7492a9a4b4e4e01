"""What this vLLM installation would do with the connector, and why; starts nothing."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from semblend.core.architectures import EngineName, rows_of
from semblend.core.errors import SemBlendError, SettingsError
from semblend.integration.findings import (
    Finding,
    any_refused,
    not_installed,
    note,
    ok,
    own_installation,
    refused,
)
from semblend.integration.modes import Execution, Mode
from semblend.integration.refusals import architecture_names
from semblend.integration.vllm.options import ConnectorOptions
from semblend.integration.vllm.support import (
    engine_refusals,
    has_windows,
    offloading_refusals,
)
from semblend.integration.vllm.versions import VERSIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupQuestion:
    """What to check: a model and how vLLM would be started with it."""

    model: str | None
    transfer_config: Mapping[str, Any]
    worker_cls: str
    tensor_parallel_size: int
    dtype: str
    max_model_len: int | None
    kv_offloading_size: float | None = None


def diagnose(question: SetupQuestion) -> list[Finding]:
    """Run all checks, in the order a start would hit them."""
    findings = [*own_installation("vllm"), *_installation()]
    options = _options(question, findings)
    if any_refused(findings) or options is None:
        return findings
    findings += _mode(options)
    findings += _connector(question)
    if not any_refused(findings) and question.model is not None:
        findings += _engine(question, options)
    return findings


def _installation() -> Iterator[Finding]:
    if importlib.util.find_spec("vllm") is None:
        yield not_installed("vLLM", extra="vllm")
        return
    verdict = VERSIONS.installed() or VERSIONS.judge("unknown")
    yield VERSIONS.finding(verdict)
    if verdict.supported:
        yield from _platform()


def _platform() -> Iterator[Finding]:
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        yield ok("platform", "CPU, tested")
    else:
        yield note(
            "platform", f"{current_platform.device_name}: docs/vllm.md says what was run on GPUs"
        )


def _options(question: SetupQuestion, findings: list[Finding]) -> ConnectorOptions | None:
    extra = question.transfer_config.get("kv_connector_extra_config") or {}
    try:
        if not isinstance(extra, Mapping):
            raise SettingsError("kv_connector_extra_config: expected a JSON object")
        options = ConnectorOptions.from_extra_config(extra)
        options.settings()
    except SemBlendError as error:
        findings.append(refused("configuration", str(error)))
        return None
    return options


def _mode(options: ConnectorOptions) -> Iterator[Finding]:
    mode, says = options.mode, {
        Mode.DISCOVERY_ONLY: "finds and reports reusable spans; loads nothing",
        Mode.EXACT_PREFIX: "restores identical prefixes that vLLM's cache has evicted; exact",
        Mode.REQUEST_ONLY_EXPERIMENTAL: "loads hole-free prefixes for one request; uncertified",
        Mode.SEGMENTED_EXPERIMENTAL: "loads spans anywhere; uncertified, every response says so",
        Mode.SEGMENTED: "loads spans anywhere, if the model has a quality certificate",
    }  # fmt: skip
    yield (note if mode.uncertified else ok)("mode", f"{mode.value}: {says[mode]}")
    if mode.segmented:
        how = {
            Execution.NESTED: "nested: holes in one extra pass of the model",
            Execution.STAGED: "staged: ladders only, see semblend.integration.vllm.ladder_client",
        }
        yield ok("execution", how[options.execution])


def _connector(question: SetupQuestion) -> Iterator[Finding]:
    for refusal in offloading_refusals(question.kv_offloading_size):
        yield refused("connector", str(refusal))


def _engine(question: SetupQuestion, options: ConnectorOptions) -> Iterator[Finding]:
    from semblend.integration.vllm.setup import VllmSetup

    try:
        config = _vllm_config(question)
    except Exception as error:
        # vLLM may raise anything for a configuration it cannot take.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        yield refused("model", f"vLLM says: {lines[-1]}")
        return
    yield from _architecture(config)
    yield from hybrid_manager(config)
    refusals = engine_refusals(config, options)
    for refusal in refusals:
        if options.mode.loads:
            yield refused("model", str(refusal))
        else:
            yield note("model", f"{refusal}; nothing could be loaded")
    if refusals:
        return
    yield ok("model", f"{question.model}: nothing is refused")
    engine = VllmSetup.of(config, options)
    setup = engine.scheduler
    if options.mode is Mode.SEGMENTED and setup.certified:
        yield ok("certificate", f"policy {setup.standing.policy}")
    elif options.mode is Mode.SEGMENTED:
        detail = f"{setup.standing.detail}: the connector would run discovery only"
        yield refused("certificate", detail)
        yield note("next", engine.running.next_step)
    yield ok(
        "budget",
        f"at most {setup.hole_budget} hole tokens per step, blocks of {setup.block_size}, "
        f"{setup.ranks} rank(s)",
    )


def _architecture(config: Any) -> Iterator[Finding]:
    """What the table says of the model; what it refuses is among the refusals."""
    names = architecture_names(config.model_config.hf_config)
    for row in rows_of(names, EngineName.VLLM):
        special = ", ".join(sorted(row.traits)) or "dense layers, full attention"
        yield ok("architecture", f"{row.name} ({row.models}): tested; {special}")


def hybrid_manager(config: Any) -> Iterator[Finding]:
    """Whether vLLM would keep windowed layers apart, which is found out only at start."""
    if has_windows(config) and not config.scheduler_config.disable_hybrid_kv_cache_manager:
        yield note(
            "windows",
            "start vLLM with --disable-hybrid-kv-cache-manager: its hybrid manager drops K/V "
            "beyond windows, and loading is refused with it (docs/vllm.md)",
        )


def _vllm_config(question: SetupQuestion) -> Any:
    """The VllmConfig of a start, made without loading weights."""
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(
        model=str(question.model),
        dtype=question.dtype,
        max_model_len=question.max_model_len,
        tensor_parallel_size=question.tensor_parallel_size,
        worker_cls=question.worker_cls,
        kv_transfer_config=KVTransferConfig(**question.transfer_config),
    ).create_engine_config()
