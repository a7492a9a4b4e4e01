"""Is an answer right? Compares it with its prompt alone: computed cold, or with the same load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from benchmarks.engine_fuzz.comparing import Answer, Comparison, Continue, Difference
from benchmarks.engine_fuzz.driving import Progress
from benchmarks.engine_fuzz.engine import FuzzEngine, Load, Record
from benchmarks.engine_fuzz.traffic import OFF
from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.integration.probing import is_dynamic


@dataclass(slots=True)
class Verdicts:
    """The results of judging the answers."""

    checked: int = 0
    as_cold: int = 0
    as_replay: int = 0
    mixed: int = 0
    """Preempted: first over its load, then computed."""
    not_replayed: int = 0
    wrong: dict[str, list[str]] = field(default_factory=dict)
    """What differed, by kind of request."""
    cut_short: list[str] = field(default_factory=list)


class Oracle:
    """Judges answers by runs in a quiet engine: no faults, no other requests."""

    def __init__(self, engine: FuzzEngine, *, margin: float, batch_tokens: int) -> None:
        self._engine = engine
        self.comparison = Comparison(margin=margin)
        self._batch_tokens = batch_tokens
        self._cold: dict[bytes, Answer] = {}
        self._alone: dict[bytes, Answer] = {}
        self.verdicts = Verdicts()

    def judge(self, records: Sequence[Record]) -> Verdicts:
        """Judge all records and report what is wrong."""
        said = [record for record in records if record.answer]
        self._cold_in_batches(said)
        progress = Progress("answers", len(said))
        for number, record in enumerate(said):
            self._judge(record)
            progress.at(number, f"({sum(map(len, self.verdicts.wrong.values()))} wrong)")
        return self.verdicts

    def _judge(self, record: Record) -> None:
        asked, verdicts = record.asked, self.verdicts
        verdicts.checked += 1
        if len(record.answer) != asked.most and record.finished:
            verdicts.cut_short.append(f"{asked}: {len(record.answer)} tokens")
        tokens = asked.tokens
        compare, go_on = self.comparison.difference, self._go_on(tokens)
        difference = compare(record.answer, self._cold[tokens.tobytes()], go_on)
        if difference is not None:
            difference = compare(record.answer, self.cold(tokens), go_on)
        if difference is None:
            verdicts.as_cold += 1
            return
        preempted = record.preemptions > 0
        approximate = record.said.get("approximate") or (record.tainted and preempted)
        if approximate and self._over_loads(record, difference):
            return
        group = "bystander" if asked.kind == "bystander" else ""
        group = group or ("reused" if record.reused else "not reused")
        verdicts.wrong.setdefault(group, []).append(
            f"WRONG {asked}: {difference}; {record.preemptions} preemptions, "
            f"{'aborted, ' if record.aborted else ''}reported {record.said}; "
            f"answered {list(record.answer)}, cold {list(self.cold(tokens).tokens)}"
        )

    def _over_loads(self, record: Record, cold: Difference) -> bool:
        """Whether an answer that is not cold's is what its loads give."""
        begun = (load for load in record.loads if load.after <= cold.place)
        return any(self._from_load(record, load) for load in begun)

    def _from_load(self, record: Record, load: Load) -> bool:
        """Whether an answer is, from a load on, what the load and what may follow it give."""
        rest = record.answer[load.after :]
        if not rest:
            return False
        replay = self._replay(record, load)
        if replay is None:
            self.verdicts.not_replayed += 1
            return False
        difference = self.comparison.difference(rest, replay)
        if difference is None:
            self.verdicts.as_replay += 1
            return True
        if not record.preemptions:
            return False
        # It may have continued without its load, or over another, from any token on.
        place = load.after + difference.place
        later = (other for other in record.loads if load.after < other.after <= place)
        if any(self._from_load(record, other) for other in later):
            return True
        tokens = _after(record.asked.tokens, record.answer[:place])
        explained = not self.comparison.difference(
            record.answer[place:], self.cold(tokens), self._go_on(tokens)
        )
        self.verdicts.mixed += explained
        return explained

    # -- references ----------------------------------------------------------------------

    def cold(self, tokens: TokenArray) -> Answer:
        """The prompt alone, computed."""
        key = tokens.tobytes()
        if key not in self._alone:
            (answer,) = self._engine.run_all([tokens], [self._engine.fresh_salt()], OFF)
            self._alone[key] = answer
        return self._alone[key]

    def _go_on(self, tokens: TokenArray) -> Continue:
        return lambda said: self.cold(_after(tokens, said))

    def _cold_in_batches(self, records: Sequence[Record]) -> None:
        """Compute every prompt once, as many together as fit; doubtful ones are repeated alone."""
        wanted: dict[bytes, Record] = {}
        for record in sorted(records, key=lambda record: len(record.answer)):
            wanted[record.asked.tokens.tobytes()] = record  # keeps the longest answer
        progress = Progress("cold", len(wanted))
        batch: list[Record] = []
        for number, record in enumerate(wanted.values()):
            tokens = sum(len(other.asked.tokens) for other in (*batch, record))
            if tokens > self._batch_tokens:
                self._run_cold(batch)
                progress.at(number)
                batch = []
            batch.append(record)
        self._run_cold(batch)

    def _run_cold(self, batch: Sequence[Record]) -> None:
        prompts = [record.asked.tokens for record in batch]
        lengths = [len(record.answer) for record in batch]
        salts = [self._engine.fresh_salt() for _ in batch]
        answers = self._engine.run_all(prompts, salts, OFF, lengths)
        for tokens, answer in zip(prompts, answers, strict=True):
            self._cold[tokens.tobytes()] = answer

    def _replay(self, record: Record, load: Load) -> Answer | None:
        """Repeat the same load alone: same donors, same plan, no fault."""
        plan, engine = load.plan, self._engine
        tokens = _after(record.asked.tokens, record.answer[: load.after])
        if not set(plan.donor_ids) <= set(engine.donors):
            return None
        engine.make_room()
        salt, names = engine.fresh_salt(), {}
        for donor_id in plan.donor_ids:
            known = set(engine.donors)
            engine.run_all([engine.donors[donor_id]], [salt], {"reuse": False}, 1)
            new = [name for name in engine.donors if name not in known]
            if len(new) != 1:
                return None
            names[donor_id] = new[0]
            engine.forget_prefixes()
        if plan.exact_tokens:
            # The engine's own prefix cache held these.
            engine.run_all([tokens[: plan.exact_tokens]], [salt], OFF, 1)
        engine.rewrite_plans(partial(forced, plan, names))
        try:
            hints = {"capture": False}
            if is_dynamic(plan.policy) or "policy" in record.asked.hints:
                hints |= {k: v for k, v in record.asked.hints.items() if k == "policy"}
            (answer,) = engine.run_all([tokens], [salt], hints)
        finally:
            engine.rewrite_plans(None)
        return answer if answer.said.get("outcome") == "materialised" else None


def _after(tokens: TokenArray, said: Sequence[int]) -> TokenArray:
    """A prompt and a part of its answer."""
    return np.concatenate([tokens, np.array(said, dtype=np.int32)])


def forced(plan: Plan, names: dict[str, str], now: Plan, _tokens: TokenArray) -> Plan:
    """An earlier plan under the donors' new names, after what is exact now."""
    spans = (
        replace(span, donor_id=names[span.donor_id]).clipped(now.exact_tokens, plan.end)
        for span in plan.spans
    )
    return replace(
        plan,
        namespace=now.namespace,
        exact_tokens=now.exact_tokens,
        spans=tuple(span for span in spans if span is not None),
    )
