"""Starts the engine that a command measures: embedded, vLLM, SGLang, or a server over its URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from semblend.core.errors import SettingsError
from semblend.core.json_text import parse_json
from semblend.planning.certificates import find_depth_table
from semblend.planning.policies.base import policy_from_spec

if TYPE_CHECKING:
    from semblend.quality.seam import MeasuredEngine
    from semblend.quality.served.vllm_offline import VllmOffline

ROOM_TOKENS = 64
"""Between the longest prompt and the engine's limit: the answer, and a template's words."""


class EngineKind(StrEnum):
    """Engines that can be measured."""

    EMBEDDED = "embedded"
    VLLM = "vllm"
    SGLANG = "sglang"


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedEngine:
    """What was asked for."""

    model: str
    kind: EngineKind
    server: str = ""
    """A URL: what runs there is measured, whatever `kind` says."""
    engine_args: str = ""
    device: str = "auto"
    dtype: str = "auto"
    policies: tuple[str, ...]
    """That will be asked for."""
    named: bool
    """Whether the user named them: then they are asked as they are, or not at all."""
    longest: int
    """Longest prompt in tokens, for the table of depth drift."""
    records: Path
    """Tables that are measured are kept there."""
    measures_table: bool = True
    """Otherwise one that lies where certificates do is taken, if there is one."""
    answer_tokens: int = 24

    @property
    def shifting(self) -> str | None:
        """A policy that needs the table of depth drift."""
        return next((s for s in self.policies if policy_from_spec(s).shifts_depth), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """An engine that runs."""

    engine: MeasuredEngine
    policies: tuple[str, ...]
    """As this engine can run them, and as it spells them in its reports."""
    most_tokens: int = 0
    """Longest prompt and answer that it takes; 0: not known."""
    table: Path | None = None
    """The table of depth drift, where a policy needs it."""


@contextmanager
def started(wanted: WantedEngine, console: Console) -> Iterator[Started]:
    """An engine, for as long as it is needed.

    Raises
    ------
    SettingsError
        If what was asked for cannot be measured there.
    """
    start = _server if wanted.server else _STARTS[wanted.kind]
    with console.status(f"starting {wanted.server or wanted.kind.value}"):
        running = start(wanted)
    try:
        yield running
    finally:
        running.engine.close()


def unshifted(spec: str) -> str:
    """A policy without the shift of depths."""
    inner = getattr(policy_from_spec(spec), "policy", None)
    return inner.spec if policy_from_spec(spec).shifts_depth and inner is not None else spec


def fingerprint_of(model: str) -> str:
    """The content hash that engines look certificates up by.

    Raises
    ------
    SettingsError
        If the files of the model are not on this machine.
    """
    from semblend.integration.loaded_model.model_identity import content_fingerprint, weights_folder

    folder = weights_folder(model)
    readable = folder is not None and (folder / "config.json").is_file()
    fingerprint = content_fingerprint(folder, None) if readable else None
    if fingerprint is None:
        raise SettingsError(
            f"--model: no config.json and safetensors files of {model} are on this machine"
        )
    return fingerprint


def _architecture_of(model: str) -> str:
    from transformers import AutoConfig

    named = AutoConfig.from_pretrained(model).architectures or ["not told"]
    return str(named[0])


def _spelled(wanted: WantedEngine, *, no_table: str = "") -> tuple[str, ...]:
    """The policies, with every default, and without shifts where there is no table."""
    specs = wanted.policies
    if no_table and wanted.shifting is not None:
        if wanted.named:
            raise SettingsError(f"--policy: {wanted.shifting} needs a table, but {no_table}")
        specs = tuple(dict.fromkeys(map(unshifted, specs)))
    return tuple(policy_from_spec(spec).spec for spec in specs)


def _embedded(wanted: WantedEngine) -> Started:
    from semblend.engine.model import load_model
    from semblend.kv.depth_drift import read_table
    from semblend.quality.drift import measure_drift
    from semblend.quality.embedded import MeasuredEmbedded
    from semblend.quality.lab import Lab
    from semblend.quality.shards import drift_of

    model = load_model(wanted.model, device=wanted.device, dtype=wanted.dtype)
    engine = MeasuredEmbedded(lab := Lab(model))
    table = None
    if wanted.shifting is not None:
        dtype = engine.facts.dtype
        table = None if wanted.measures_table else find_depth_table(model.fingerprint, dtype)
        table = table or drift_of(wanted.records / "embedded", dtype)
        if not table.exists():
            table.parent.mkdir(parents=True, exist_ok=True)
            table.write_bytes(measure_drift(lab, length=wanted.longest).to_bytes())
        lab.use_drift(read_table(table))
    return Started(engine=engine, policies=_spelled(wanted), table=table)


def _vllm(wanted: WantedEngine) -> Started:
    from semblend.integration.vllm.namespaces import asked_at_load
    from semblend.quality.served.measuring import MeasuredServer
    from semblend.quality.served.served_tables import measure_table, table_of
    from semblend.quality.served.vllm_offline import VllmOffline

    options = _engine_args(wanted.engine_args)

    def start(policy: str) -> VllmOffline:
        return VllmOffline(
            wanted.model,
            identify=lambda: fingerprint_of(wanted.model),
            asked_at_load=asked_at_load,
            dtype=wanted.dtype,
            policy=policy,
            tables=tables if wanted.measures_table else None,
            options=options,
        )

    tables = (wanted.records / "vllm-tables").resolve()
    table, asker = None, None
    if wanted.shifting is not None and (table := _former_table(tables, wanted)) is None:
        asker = start("none")
        if not asker.no_table:
            table = table_of(tables, asker.facts)
            if not table.exists():
                length = min(asker.most_tokens - ROOM_TOKENS, wanted.longest)
                measure_table(asker, tables, length=length)
            # Engines read the table when they start.
            asker.close()
            asker = None
    asker = asker or start(wanted.shifting or "none")
    return Started(
        engine=MeasuredServer(asker, answer_tokens=wanted.answer_tokens),
        policies=_spelled(wanted, no_table=asker.no_table),
        most_tokens=asker.most_tokens,
        table=table,
    )


def _former_table(folder: Path, wanted: WantedEngine) -> Path | None:
    """A table that is there already, found without an engine where the format is given."""
    from semblend.quality.served.served_tables import table_path

    if wanted.dtype == "auto":
        return None
    fingerprint = fingerprint_of(wanted.model)
    if not wanted.measures_table:
        return find_depth_table(fingerprint, wanted.dtype)
    path = table_path(folder, fingerprint=fingerprint, dtype=wanted.dtype)
    return path if path.exists() else None


def _sglang(wanted: WantedEngine) -> Started:
    from semblend.integration.sglang.namespaces import asked_at_load
    from semblend.integration.sglang.radix_patcher import patch_radix_cache
    from semblend.quality.served.measuring import MeasuredServer
    from semblend.quality.served.sglang_offline import SglangOffline

    fingerprint = fingerprint_of(wanted.model)
    dtype = None if wanted.dtype == "auto" else wanted.dtype
    # SGLang gives no way to a donor's K/V: there is a table only if another engine measured one.
    table = find_depth_table(fingerprint, dtype) if dtype and wanted.shifting else None
    missing = "" if table else "none lies where certificates do, and SGLang cannot measure one"
    policies = _spelled(wanted, no_table=missing)
    asker = SglangOffline(
        wanted.model,
        fingerprint=fingerprint,
        asked_at_load=asked_at_load,
        prepare=patch_radix_cache,
        dtype=wanted.dtype,
        policy=next((s for s in policies if policy_from_spec(s).shifts_depth), "none"),
        options=_engine_args(wanted.engine_args),
    )
    engine = MeasuredServer(asker, answer_tokens=wanted.answer_tokens)
    return Started(engine=engine, policies=policies, most_tokens=asker.most_tokens, table=table)


def _server(wanted: WantedEngine) -> Started:
    import os

    from transformers import AutoTokenizer

    from semblend.quality.served.measuring import MeasuredServer
    from semblend.quality.served.over_http import HttpServer

    if wanted.dtype == "auto":
        raise SettingsError("--dtype: the server's number format expected; it does not tell")
    policies = _spelled(wanted, no_table="no URL gives one")
    asker = HttpServer(
        wanted.server,
        model=wanted.model,
        fingerprint=fingerprint_of(wanted.model),
        dtype=wanted.dtype,
        architecture=_architecture_of(wanted.model),
        tokenizer=AutoTokenizer.from_pretrained(wanted.model),
        key=os.environ.get("OPENAI_API_KEY", ""),
    )
    engine = MeasuredServer(asker, answer_tokens=wanted.answer_tokens)
    return Started(engine=engine, policies=policies, most_tokens=asker.most_tokens)


_STARTS: dict[EngineKind, Callable[[WantedEngine], Started]] = {
    EngineKind.EMBEDDED: _embedded,
    EngineKind.VLLM: _vllm,
    EngineKind.SGLANG: _sglang,
}


def _engine_args(text: str) -> dict[str, Any]:
    try:
        values = parse_json(text) if text.strip() else {}
    except ValueError as error:
        raise SettingsError(f"--engine-args: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise SettingsError("--engine-args: a JSON object expected")
    return values
