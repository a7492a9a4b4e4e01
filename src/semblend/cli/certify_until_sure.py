"""`semblend certify`, until sure: through the engine that will serve, or the embedded one."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from semblend.core.errors import SettingsError
from semblend.core.namespace import NONE
from semblend.planning.certificates import depth_table, file_name
from semblend.planning.policies.base import policy_from_spec
from semblend.terminal.measured_engines import ROOM_TOKENS, EngineKind, WantedEngine, started
from semblend.terminal.progress import EVERY_S, remaining

if TYPE_CHECKING:
    from semblend.quality.limits import Limits
    from semblend.quality.redteam.finds import Findings
    from semblend.quality.seam import MeasuredEngine, MeasuredFacts
    from semblend.quality.suite import Cell
    from semblend.quality.until_sure import UntilSureResult

REDTEAM_TRIES = 4
"""Batches of structures that an estimate tries: most of them say nothing of a small model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What was asked for."""

    model: str
    engine: EngineKind
    server: str
    engine_args: str
    device: str
    dtype: str
    policies: tuple[str, ...]
    lengths: tuple[int, ...]
    workloads: tuple[str, ...]
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
    redteam_items: int
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
            redteam_items=self.redteam_items,
            confidence=self.confidence,
        )

    @property
    def starting(self) -> WantedEngine:
        """The engine to start."""
        from semblend.quality.certifying import candidates
        from semblend.quality.texts.workloads import LENGTHS

        return WantedEngine(
            model=self.model,
            kind=self.engine,
            server=self.server,
            engine_args=self.engine_args,
            device=self.device,
            dtype=self.dtype,
            policies=self.policies or candidates(),
            named=bool(self.policies),
            longest=max(self.lengths or LENGTHS),
            records=self.records,
            answer_tokens=self.answer_tokens,
        )


def certify_until_sure(wanted: Wanted, console: Console, *, estimate: bool) -> None:
    """Choose, confirm, attack, write; ends with 1 where there is no certificate."""
    from semblend.quality.until_sure import UntilSure

    limits = wanted.limits
    with started(wanted.starting, console) as running:
        facts = running.engine.facts
        if wanted.measured_on:
            facts = replace(facts, hardware=wanted.measured_on)
        cells = _cells(wanted, running.most_tokens)
        folder = wanted.records / _folder(facts, cells)
        sure = UntilSure(
            running.engine,
            folder=folder,
            limits=limits,
            most_items=wanted.most_items or 4 * limits.least_items,
            told=_teller(console),
        )
        count, seconds = sure.estimate(cells, running.policies[0], seed=wanted.seed)
        _say(
            console,
            f"{len(cells)} workloads, {limits.least_items} items each at least (if nothing is "
            f"lost), {seconds:.2g} s an item here: about {remaining(count * seconds)}",
        )
        if estimate:
            _say_redteam(running.engine, running.policies[0], limits.redteam_items, console)
            return
        found = sure.run(
            cells, running.policies, seed=wanted.seed, confirm_seed=wanted.confirm_seed
        )
        if not found.objections and limits.redteam_items:
            found.redteam = _attacked(wanted, running.engine, found.policy, folder, console)
            found.objections += limits.redteam_objections(found.redteam)
        _written(wanted, found, facts, running.table, console)
    if found.objections:
        _say(console, f"no certificate: {'; '.join(found.objections)}; reuse stays off")
        raise typer.Exit(1)


def _folder(facts: MeasuredFacts, cells: Sequence[Cell]) -> str:
    """Where this engine's measurements lie; another K/V format or drafter is another engine."""
    lengths = "-".join(map(str, cells[0].lengths))
    odd = {name: value for name, value in facts.asked_at_load.items() if value != NONE}
    mark = hashlib.sha256(repr(sorted(odd.items())).encode()).hexdigest()[:8] if odd else ""
    name = f"{facts.engine}-{facts.fingerprint[:12]}-{lengths}"
    return f"{name}-{mark}" if mark else name


def _attacked(
    wanted: Wanted, engine: MeasuredEngine, policy: str, folder: Path, console: Console
) -> Findings:
    """What the red team finds against the policy that was confirmed."""
    from semblend.quality.redteam.jobs import RedTeamJob, attack

    job = RedTeamJob(
        model=wanted.model,
        device=wanted.device,
        dtype=engine.facts.dtype,
        policy=policy,
        seed=wanted.confirm_seed,
        folder=folder,
        items=wanted.redteam_items,
    )
    told, attempts = _teller(console), 0

    def tell(job: RedTeamJob) -> None:
        nonlocal attempts
        attempts += 1
        # Findings are read from files, so not after every attempt.
        if not attempts % 10:
            told("red team", job.findings.items, wanted.redteam_items)

    attack(engine, job, tell)
    _say(console, f"red team: {job.findings.sentence}")
    return job.findings


def _say_redteam(engine: MeasuredEngine, policy: str, items: int, console: Console) -> None:
    """How long the red team takes, from a few of its structures."""
    from semblend.quality.redteam.engines import AttackedEngine
    from semblend.quality.redteam.search import Search

    if not items:
        return
    begun, tries = time.monotonic(), REDTEAM_TRIES * max(4, engine.batch)
    search = Search(engine=AttackedEngine(engine=engine, policy=policy), seed=0)
    search.run(tries=tries)
    # One more of each, or a model that answers nothing would promise an end.
    valid = (search.counted + 1) / (tries + 2)
    seconds = (time.monotonic() - begun) / tries / valid
    _say(
        console,
        f"red team: {items} valid items, {search.counted} of {tries} tried were, {seconds:.2g} s "
        f"a valid one here: about {remaining(items * seconds)}",
    )


def _cells(wanted: Wanted, most_tokens: int) -> list[Cell]:
    from semblend.quality.certifying import confirmation_cells
    from semblend.quality.texts.workloads import LENGTHS

    room = most_tokens - wanted.answer_tokens - ROOM_TOKENS if most_tokens else max(LENGTHS)
    lengths = wanted.lengths or tuple(length for length in LENGTHS if length <= room)
    if not lengths:
        raise SettingsError(f"--length: prompts of {min(LENGTHS)} tokens do not fit this engine")
    return confirmation_cells(
        1,
        data=wanted.data,
        lengths=lengths,
        policies=wanted.policies or ("none",),
        more=wanted.workloads,
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
