"""A certification that goes on until every limit is kept or broken beyond doubt.

A policy is chosen on a few items of one seed, among candidates that are dropped as soon as they
are beaten. It is then confirmed on documents of another seed, the workloads that are likeliest to
fail first, and the first one that fails ends the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from semblend.quality.doubt import LimitAnswer
from semblend.quality.figures import noise_floor
from semblend.quality.items import Case, to_item
from semblend.quality.limits import PILOT, Limits, LimitWatch
from semblend.quality.measure import Record
from semblend.quality.redteam.finds import Findings
from semblend.quality.seam import MeasuredEngine, Work
from semblend.quality.suite import Cell, Records, read_records

NAIVE = "none"
COLD = "cold"
ORDER = (
    "edited_exchanged",
    "composed",
    "edited_distant",
    "edited_renamed",
    "control_negation",
    "control_swapped_entities",
    "edited_polarity",
    "gathered",
    "reordered",
    "control_same_template",
    "edited_numbers",
    "control_swapped_numbers",
    "control_wrong_document",
    "edited_order",
    "continuation",
    "multi_turn",
    "instruction",
)
"""Workloads, the likeliest to fail first; a workload that is not named here comes last."""
TELLING = ("edited_exchanged", "composed", "edited_renamed", "reordered")
"""What candidates compete on."""
COLD_ITEMS = 8
"""Items of each workload that are answered cold once more, for the noise floor."""
BEATEN_BY = 3
"""Answers that a candidate may lose beyond the best of them, before it is dropped."""

Told = Callable[[str, int, int], None]
"""(what is measured, items done, items there will be at least)"""


@dataclass(slots=True, kw_only=True)
class UntilSureResult:
    """What was found."""

    policy: str
    choice: list[LimitWatch] = field(default_factory=list)
    confirmation: list[LimitWatch] = field(default_factory=list)
    noise: dict[str, float] = field(default_factory=dict)
    naive: list[Record] = field(default_factory=list)
    shown: list[Case] = field(default_factory=list)
    """What it was confirmed on."""
    redteam: Findings | None = None
    objections: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def not_counted(self) -> list[str]:
        """Workloads that cold seldom answers right: judged by agreement alone."""
        return [
            watch.workload
            for watch in self.confirmation
            if not watch.by_answers and any(record.expected for record in watch.records)
        ]


def ordered(cells: Sequence[Cell]) -> list[Cell]:
    """Real text first, then the likeliest to fail."""
    place = {name: at for at, name in enumerate(ORDER)}
    return sorted(cells, key=lambda c: -1 if c.data else place.get(c.workload, len(ORDER)))


class UntilSure:
    """Chooses and confirms, through any engine."""

    def __init__(
        self,
        engine: MeasuredEngine,
        *,
        folder: Path,
        limits: Limits,
        most_items: int,
        choice_items: int = PILOT,
        told: Told = lambda what, done, total: None,
    ) -> None:
        """`folder` holds what was measured: a run that was stopped goes on."""
        self._engine = engine
        self._folder = folder
        self._limits = limits
        self._most = most_items
        self._choice_items = choice_items
        self._told = told
        # No more at once than may be needed: what is measured beyond a decision is wasted.
        self._batch = min(engine.batch, limits.least_items)

    def run(
        self, cells: Sequence[Cell], candidates: Sequence[str], *, seed: int, confirm_seed: int
    ) -> UntilSureResult:
        """Choose among the candidates, confirm the winner."""
        started = time.monotonic()
        policy, watched = self.choose(cells, candidates, seed=seed)
        found = self.confirm(cells, policy, seed=confirm_seed)
        found.choice = watched
        found.seconds = time.monotonic() - started
        return found

    def estimate(self, cells: Sequence[Cell], policy: str, *, seed: int) -> tuple[int, float]:
        """Items there are at least, and seconds an item, from one batch of the telling ones."""
        cell = next((c for c in ordered(cells) if c.workload in TELLING), cells[0])
        some = replace(cell, items=max(len(cell.lengths), self._batch))
        work = [(to_item(c, self._engine.tokenizer), (NAIVE, policy)) for c in some.cases(seed)]
        started = time.monotonic()
        # Nothing is taken from records: those would cost no time.
        self._engine.measure(work)
        seconds = (time.monotonic() - started) / len(work)
        return len(cells) * self._limits.least_items, seconds

    def choose(
        self, cells: Sequence[Cell], candidates: Sequence[str], *, seed: int
    ) -> tuple[str, list[LimitWatch]]:
        """The cheapest candidate that is not beaten; a single one has nobody to beat."""
        standing = list(candidates)
        watched: list[LimitWatch] = []
        if len(standing) == 1:
            return standing[0], []
        for cell in ordered([c for c in cells if c.workload in TELLING]):
            mine = {spec: LimitWatch(cell.workload, spec, self._limits) for spec in standing}
            rounds = self._measured(cell, tuple(standing), seed=seed, most=self._choice_items)
            for done, records in enumerate(rounds, 1):
                self._told(f"choosing, {cell.workload}", done, self._choice_items)
                for spec, watch in mine.items():
                    watch.observe(records.get(spec))
            watched += mine.values()
            least = min(watch.lost for watch in mine.values())
            standing = [
                spec
                for spec in standing
                if mine[spec].answer is not LimitAnswer.BROKEN
                and mine[spec].lost < least + BEATEN_BY
            ] or [min(standing, key=lambda spec: mine[spec].lost)]
            if len(standing) == 1:
                break
        return min(standing, key=lambda spec: _price(spec, watched)), watched

    def confirm(self, cells: Sequence[Cell], policy: str, *, seed: int) -> UntilSureResult:
        """Go through all workloads until each is decided, or one is broken."""
        found = UntilSureResult(policy=policy)
        colds: list[Record] = []
        cells = ordered(cells)
        least = self._limits.least_items
        for place, cell in enumerate(cells):
            watch = LimitWatch(cell.workload, policy, self._limits)
            found.confirmation.append(watch)
            specs, done = (NAIVE, policy, COLD), 0
            for done, records in enumerate(self._measured(cell, specs, seed=seed), 1):
                before, behind = place * least, (len(cells) - place - 1) * least
                self._told(cell.workload, before + done, before + max(least, done) + behind)
                watch.observe(records.get(policy))
                found.naive += [records[NAIVE]] if NAIVE in records else []
                colds += [records[COLD]] if COLD in records else []
                if watch.answer is not LimitAnswer.OPEN:
                    break
                if done >= PILOT and not watch.records:
                    break  # nothing is ever reused: more items would not tell more
            found.shown += list(replace(cell, items=done).cases(seed))
            if watch.answer is not LimitAnswer.KEPT:
                break
        found.noise = noise_floor(colds)
        for watch in found.confirmation:
            found.objections += watch.objections(noise_kl=found.noise["kl_p99"])
        missing = [cell.workload for cell in cells[len(found.confirmation) :]]
        if missing:
            found.objections.append(f"not measured any more: {', '.join(missing)}")
        return found

    def _measured(
        self, cell: Cell, specs: tuple[str, ...], *, seed: int, most: int | None = None
    ) -> Iterator[dict[str, Record]]:
        """Records by policy, item by item; those that a former run left come for nothing."""
        path = self._folder / f"seed-{seed}-{self._engine.facts.dtype}" / "records.jsonl"
        file = Records(path)
        held: dict[str, dict[str, Record]] = {}
        for record in read_records([path]) if path.exists() else ():
            held.setdefault(record.case_id, {})[record.policy] = record
        limited = replace(cell, items=self._most if most is None else most)
        waiting: list[Case] = []

        def measured() -> Iterator[dict[str, Record]]:
            work: list[Work] = []
            for case in waiting:
                wanted = [s for s in specs if s != COLD or case.number < COLD_ITEMS]
                work.append((to_item(case, self._engine.tokenizer), tuple(wanted)))
            waiting.clear()
            found = self._engine.measure(work) if work else []
            file.add([record for records in found for record in records])
            for records in found:
                yield {record.policy: record for record in records}

        for case in limited.cases(seed):
            known = held.get(case.case_id, {})
            if all(spec in known for spec in specs if spec != COLD):
                yield from measured()
                yield known
                continue
            waiting.append(case)
            if len(waiting) >= self._batch:
                yield from measured()
        yield from measured()


def _price(spec: str, watched: Sequence[LimitWatch]) -> float:
    prices = [watch.price for watch in watched if watch.policy == spec]
    return sum(prices) / len(prices)
