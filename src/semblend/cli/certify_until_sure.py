"""`semblend certify`, until sure: through the engine that will serve, or the embedded one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from semblend.core.errors import SettingsError
from semblend.core.json_text import parse_json
from semblend.planning.certificates import depth_table, file_name
from semblend.planning.policies.base import policy_from_spec
from semblend.terminal.progress import EVERY_S, remaining

if TYPE_CHECKING:
    from semblend.quality.limits import Limits
    from semblend.quality.seam import MeasuredEngine, MeasuredFacts
    from semblend.quality.suite import Cell
    from semblend.quality.until_sure import UntilSureResult

ROOM_TOKENS = 64
"""Between the longest prompt and the engine's limit: the answer, and a template's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What was asked for."""

    model: str
    engine: str
    server: str
    engine_args: str
    device: str
    dtype: str
    policies: tuple[str, ...]
    lengths: tuple[int, ...]
    data: str | None
    seed: int
    confirm_seed: int
    output: Path
    records: Path
    most_items: int | None
    answers: float
    disagreement: float
    kl_epsilon: float
    recompute: float
    confidence: float
    answer_tokens: int
    measured_on: str
    command: str

    @property
    def limits(self) -> Limits:
        """What the certificate states."""
        from semblend.quality.limits import Limits

        for name in ("answers", "disagreement", "confidence"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise SettingsError(f"--{name}: a share in (0, 1) expected")
        return Limits(
            answers=self.answers,
            disagreement=self.disagreement,
            kl_epsilon=self.kl_epsilon,
            recompute=self.recompute,
            confidence=self.confidence,
        )

    @property
    def candidates(self) -> tuple[str, ...]:
        """Policies that compete; without a table of depth drift, those that need none."""
        from semblend.quality.certifying import candidates

        specs = self.policies or candidates()
        if not self.policies and self.engine == "server":
            specs = tuple(unshifted(spec) for spec in specs)
        # As engines spell them in their reports, with every default.
        return tuple(policy_from_spec(spec).spec for spec in specs)

    @property
    def shifting(self) -> str | None:
        """A candidate that needs the table of depth drift."""
        return next((s for s in self.candidates if policy_from_spec(s).shifts_depth), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """An engine that runs."""

    engine: MeasuredEngine
    most_tokens: int
    """Longest prompt and answer that it takes; 0: not known."""
    table: Path | None
    """The table of depth drift, where a candidate needs it."""


def unshifted(spec: str) -> str:
    """A candidate without the shift of depths."""
    inner = getattr(policy_from_spec(spec), "policy", None)
    return inner.spec if policy_from_spec(spec).shifts_depth and inner is not None else spec


def certify_until_sure(wanted: Wanted, console: Console, *, estimate: bool) -> None:
    """Choose, confirm, write; ends with 1 where there is no certificate."""
    from semblend.quality.until_sure import UntilSure

    limits = wanted.limits
    with _started(wanted, console) as started:
        facts = started.engine.facts
        if wanted.measured_on:
            facts = replace(facts, hardware=wanted.measured_on)
        cells = _cells(wanted, started.most_tokens)
        lengths = "-".join(map(str, cells[0].lengths))
        folder = wanted.records / f"{facts.engine}-{facts.fingerprint[:12]}-{lengths}"
        sure = UntilSure(
            started.engine,
            folder=folder,
            limits=limits,
            most_items=wanted.most_items or 4 * limits.least_items,
            told=_teller(console),
        )
        count, seconds = sure.estimate(cells, wanted.candidates[0], seed=wanted.seed)
        _say(
            console,
            f"{len(cells)} workloads, {limits.least_items} items each at least (if nothing is "
            f"lost), {seconds:.2g} s an item here: about {remaining(count * seconds)}",
        )
        if estimate:
            return
        found = sure.run(
            cells, wanted.candidates, seed=wanted.seed, confirm_seed=wanted.confirm_seed
        )
        _written(wanted, found, facts, started.table, console)
    if found.objections:
        _say(console, f"no certificate: {'; '.join(found.objections)}; reuse stays off")
        raise typer.Exit(1)


def _cells(wanted: Wanted, most_tokens: int) -> list[Cell]:
    from semblend.quality.certifying import confirmation_cells
    from semblend.quality.texts.workloads import LENGTHS

    room = most_tokens - wanted.answer_tokens - ROOM_TOKENS if most_tokens else max(LENGTHS)
    lengths = wanted.lengths or tuple(length for length in LENGTHS if length <= room)
    if not lengths:
        raise SettingsError(f"--length: prompts of {min(LENGTHS)} tokens do not fit this engine")
    return confirmation_cells(
        1, data=wanted.data, lengths=lengths, policies=wanted.policies or ("none",)
    )


def _written(
    wanted: Wanted,
    found: UntilSureResult,
    facts: MeasuredFacts,
    table: Path | None,
    console: Console,
) -> None:
    from semblend.kv.depth_drift import table_digest
    from semblend.quality.sure_issue import certificate_of, page

    shifts = policy_from_spec(found.policy).shifts_depth
    data: dict[str, Any] = {
        "seeds": {"chosen_on": wanted.seed, "confirmed_on": wanted.confirm_seed},
        "real_text": wanted.data,
        "command": wanted.command,
        "depth_table": table_digest(table.read_bytes()) if shifts and table else None,
    }
    certificate = certificate_of(found, facts=facts, limits=wanted.limits, data=data)
    wanted.output.mkdir(parents=True, exist_ok=True)
    stem = f"{Path(facts.model).name}-{facts.fingerprint}-{facts.dtype}"
    if certificate is not None:
        path = wanted.output / file_name(certificate)
        if shifts and table is not None:
            depth_table(path).write_bytes(table.read_bytes())
        path.write_text(certificate.to_json(), encoding="utf-8")
        stem = path.stem
        _say(console, f"certificate: {path}")
        _say(console, f"policy: {certificate.policy}")
    report = wanted.output / f"{stem}.html"
    text = page(found, facts=facts, limits=wanted.limits, command=wanted.command)
    report.write_text(text, encoding="utf-8")
    _say(console, f"report: {report}")


@contextmanager
def _started(wanted: Wanted, console: Console) -> Iterator[Started]:
    make = {"embedded": _embedded, "vllm": _vllm, "server": _server}[wanted.engine]
    with console.status(f"starting {wanted.engine}"):
        started = make(wanted)
    try:
        yield started
    finally:
        started.engine.close()


def _embedded(wanted: Wanted) -> Started:
    from semblend.engine.model import load_model
    from semblend.kv.depth_drift import read_table
    from semblend.quality.drift import measure_drift
    from semblend.quality.embedded import MeasuredEmbedded
    from semblend.quality.lab import Lab
    from semblend.quality.shards import drift_of
    from semblend.quality.texts.workloads import LENGTHS

    model = load_model(wanted.model, device=wanted.device, dtype=wanted.dtype)
    engine = MeasuredEmbedded(lab := Lab(model))
    table = None
    if wanted.shifting is not None:
        table = drift_of(wanted.records / "embedded", engine.facts.dtype)
        if not table.exists():
            table.parent.mkdir(parents=True, exist_ok=True)
            length = max(wanted.lengths or LENGTHS)
            table.write_bytes(measure_drift(lab, length=length).to_bytes())
        lab.use_drift(read_table(table))
    return Started(engine=engine, most_tokens=0, table=table)


def _vllm(wanted: Wanted) -> Started:
    from semblend.quality.served.measuring import MeasuredServer
    from semblend.quality.served.served_tables import measure_table, table_of
    from semblend.quality.served.vllm_offline import VllmOffline
    from semblend.quality.texts.workloads import LENGTHS

    options = _engine_args(wanted.engine_args)

    def start(policy: str) -> VllmOffline:
        return VllmOffline(
            wanted.model,
            identify=lambda: fingerprint_of(wanted.model),
            dtype=wanted.dtype,
            policy=policy,
            tables=tables,
            options=options,
        )

    tables = (wanted.records / "vllm-tables").resolve()
    table = None
    if wanted.shifting is not None and (table := _former_table(tables, wanted)) is None:
        asker = start("none")
        table = table_of(tables, asker.facts)
        if not table.exists():
            room = asker.most_tokens - ROOM_TOKENS
            measure_table(asker, tables, length=min(room, max(wanted.lengths or LENGTHS)))
        # Engines read the table when they start.
        asker.close()
    asker = start(wanted.shifting or "none")
    engine = MeasuredServer(asker, answer_tokens=wanted.answer_tokens)
    return Started(engine=engine, most_tokens=asker.most_tokens, table=table)


def _former_table(folder: Path, wanted: Wanted) -> Path | None:
    """The table that a former run measured, found without an engine where the format is given."""
    from semblend.quality.served.served_tables import table_path

    if wanted.dtype == "auto" or not folder.is_dir():
        return None
    path = table_path(folder, fingerprint=fingerprint_of(wanted.model), dtype=wanted.dtype)
    return path if path.exists() else None


def _server(wanted: Wanted) -> Started:
    import os

    from transformers import AutoTokenizer

    from semblend.quality.served.measuring import MeasuredServer
    from semblend.quality.served.over_http import HttpServer

    if wanted.dtype == "auto":
        raise SettingsError("--dtype: the server's number format expected; it does not tell")
    if wanted.shifting is not None:
        raise SettingsError(f"--policy: {wanted.shifting} needs a table that no URL gives")
    asker = HttpServer(
        wanted.server,
        model=wanted.model,
        fingerprint=fingerprint_of(wanted.model),
        dtype=wanted.dtype,
        tokenizer=AutoTokenizer.from_pretrained(wanted.model),
        key=os.environ.get("OPENAI_API_KEY", ""),
    )
    engine = MeasuredServer(asker, answer_tokens=wanted.answer_tokens)
    return Started(engine=engine, most_tokens=asker.most_tokens, table=None)


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


def _engine_args(text: str) -> dict[str, Any]:
    try:
        values = parse_json(text) if text.strip() else {}
    except ValueError as error:
        raise SettingsError(f"--engine-args: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise SettingsError("--engine-args: a JSON object expected")
    return values


def _teller(console: Console) -> Callable[[str, int, int], None]:
    """One line now and then: what is measured, how far, how long it will take."""
    started = said = time.monotonic()
    first: int | None = None

    def told(what: str, done: int, total: int) -> None:
        nonlocal started, said, first
        now = time.monotonic()
        if first is None or done < first:
            first, started = done, now
        if now - said < EVERY_S:
            return
        said = now
        line = f"{what}: {done} of at least {total} items"
        if done > first:
            left = (now - started) / (done - first) * (total - done)
            line += f", about {remaining(left)} left"
        _say(console, line)

    return told


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
