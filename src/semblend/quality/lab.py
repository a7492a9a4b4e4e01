"""Executes plans with the engine's own components, many at once and without a server.

An item's spans are loaded once. Each policy's page table points to them for copies, and to its own
slots for what it computes. Any number of policies are thus judged in one pass over shared donor
K/V.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from semblend.core.namespace import Namespace
from semblend.core.plan import Hole, Plan
from semblend.core.settings import EmbedderKind, Settings
from semblend.core.tokens import TokenArray
from semblend.engine.batch import ComputeRun
from semblend.engine.cache.pages import PageIds, PageTable
from semblend.engine.cache.pool import PagedPool
from semblend.engine.materialise import load_spans, shift_spans
from semblend.engine.model import LoadedModel
from semblend.engine.probes import PoolProbe
from semblend.engine.segmented import compute
from semblend.engine.vocabulary_boundaries import boundaries_of
from semblend.kv.depth_drift import DepthDrift
from semblend.kv.donor_pieces import DonorKv, DonorPiece
from semblend.pipeline import SemBlendPipeline
from semblend.planning.depth import drift_for
from semblend.planning.policies.base import RecomputePolicy
from semblend.planning.recompute import plan_runs, probed, with_policy
from semblend.quality.items import Item


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """A prompt with its pages, ready to be continued with `forced` tokens."""

    item: Item
    plan: Plan | None
    """None means cold."""
    table: PageTable
    forced: TokenArray
    probe_tokens: float = 0.0
    """Cost of the policy's probe, in tokens through all layers."""

    def runs(self) -> list[ComputeRun]:
        """Everything this trial computes, including the forced tokens after its tail."""
        size = len(self.item.tokens)
        text = np.concatenate((self.item.tokens, self.forced[:-1])).astype(np.int32)
        holes = (Hole(0, size),) if self.plan is None else plan_runs(self.plan)
        holes = (*holes[:-1], Hole(holes[-1].start, len(text)))
        return [
            ComputeRun(
                tokens=text[h.start : h.end],
                start=h.start,
                table=self.table,
                logit_rows=len(self.forced) if h.end == len(text) else 0,
            )
            for h in holes
        ]


SPARE_TOKENS = 16
"""Slots after the forced tokens, for answers that turn out longer."""


class Lab:
    """A model, a slot pool and a pipeline for measurements. Holds one item's spans at a time."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        capacity_tokens: int = 65_536,
        drift: DepthDrift | None = None,
    ) -> None:
        """Policies that shift depths need `drift`."""
        self.model = model
        self.drift: DepthDrift | None = None
        if drift is not None:
            self.use_drift(drift)
        self.boundaries = boundaries_of(model.tokenizer)
        self.pool = PagedPool(
            model.kv_shape,
            capacity_bytes=model.kv_shape.token_bytes * capacity_tokens,
            page_size=1,
            device=model.device,
        )
        self._pipeline = SemBlendPipeline(
            Settings(
                embedder=EmbedderKind.NONE,
                allow_uncertified=True,
                recompute_policy="none",
                namespace_secret="quality",
            ),
            boundaries=self.boundaries,
        )
        self._namespace = Namespace.of(model=model.name)

    def use_drift(self, drift: DepthDrift) -> None:
        """Shift depths with this table from now on."""
        self.drift = drift.to(self.model.device)

    @contextmanager
    def slots(self, count: int) -> Iterator[PageIds]:
        """Borrow slots."""
        pages = self.pool.allocator.allocate(count)
        try:
            yield pages
        finally:
            self.pool.allocator.release(pages)

    def spans_of(self, item: Item) -> Plan:
        """What discovery finds and marks, without a policy."""
        names = [f"{item.case.case_id}#{number}" for number in range(len(item.donors))]
        for name, tokens in zip(names, item.donors, strict=True):
            self._pipeline.register_donor(name, tokens, self._namespace)
        try:
            return self._pipeline.plan(item.tokens, self._namespace)
        finally:
            for name in names:
                self._pipeline.evict(name)

    def load(self, item: Item, plan: Plan, pages: PageIds) -> PageTable:
        """Compute the donors exactly and copy the plan's spans into `pages`."""
        table = PageTable(pages=pages, page_size=1)
        load_spans(
            plan,
            item.tokens,
            table=table,
            pool=self.pool,
            rotary=self.model.rotary,
            donors=_Donors(self, item, plan),
        )
        return table

    def shift(
        self, item: Item, plan: Plan, loaded: PageTable, pages: PageIds, drift: DepthDrift
    ) -> PageTable:
        """Copy the plan's spans again, into `pages`, shifted to their new depths."""
        table = PageTable(pages=pages, page_size=1)
        size = len(item.tokens)
        source, target = (torch.from_numpy(t.slots(0, size)) for t in (loaded, table))
        kv, device = self.pool.by_slot, self.pool.data.device
        kv.index_copy_(2, target.to(device), kv.index_select(2, source.to(device)))
        shift_spans(plan, table=table, pool=self.pool, rotary=self.model.rotary, drift=drift)
        return table

    def trial(
        self,
        item: Item,
        spans: Plan,
        loaded: PageTable,
        policy: RecomputePolicy,
        forced: TokenArray,
        take: list[PageIds],
    ) -> Trial:
        """Apply a policy to loaded spans. Its slots are added to `take` for the caller to free."""
        plan = with_policy(spans, item.tokens, policy, self.boundaries)
        table = self._table(item, plan, loaded, len(forced), take)
        if not policy.dynamic:
            return Trial(item=item, plan=plan, table=table, forced=forced)
        probe = PoolProbe(
            model=self.model, pool=self.pool, table=table, tokens=item.tokens, plan=plan
        )
        plan = probed(plan, item.tokens, policy, probe, self.boundaries)
        table = self._table(item, plan, loaded, len(forced), take)
        return Trial(item=item, plan=plan, table=table, forced=forced, probe_tokens=probe.computed)

    def cold(self, item: Item, forced: TokenArray, take: list[PageIds]) -> Trial:
        """The same prompt without reuse."""
        pages = self.pool.allocator.allocate(len(item.tokens) + len(forced) + SPARE_TOKENS)
        take.append(pages)
        return Trial(item=item, plan=None, table=PageTable(pages=pages, page_size=1), forced=forced)

    def logits(self, trials: Sequence[Trial]) -> list[torch.Tensor]:
        """Run one pass and return each trial's logits for its forced tokens, [forced, vocab]."""
        logits = self.compute([run for trial in trials for run in trial.runs()])
        return list(torch.split(logits, [len(trial.forced) for trial in trials]))

    def compute(self, runs: Sequence[ComputeRun]) -> torch.Tensor:
        """Run one pass. Passes here are rarely alike, so none is replayed."""
        return compute(self.model, self.pool, runs, replay=False)

    def greedy(self, trial: Trial, limit: int) -> list[int]:
        """Generate up to `limit` greedy tokens, without the end token. Needs the prompt's K/V."""
        size = len(trial.item.tokens)
        answer: list[int] = []
        first = ComputeRun(
            tokens=trial.item.tokens[-1:], start=size - 1, table=trial.table, logit_rows=1
        )
        run = first
        while True:
            chosen = int(self.compute([run])[0].argmax())
            if chosen in self.model.eos_token_ids or len(answer) >= limit:
                return answer
            answer.append(chosen)
            position = size + len(answer) - 1
            if position >= trial.table.capacity_tokens:
                return answer
            run = ComputeRun(
                tokens=np.asarray([chosen], dtype=np.int32),
                start=position,
                table=trial.table,
                logit_rows=1,
            )

    def close(self) -> None:
        """Stop the pipeline's thread."""
        self._pipeline.close()

    def _table(
        self, item: Item, plan: Plan, loaded: PageTable, forced: int, take: list[PageIds]
    ) -> PageTable:
        """Loaded slots where the plan copies, own slots elsewhere."""
        size = len(item.tokens) + forced + SPARE_TOKENS
        own = np.ones(size, dtype=np.bool_)
        for span in plan.copies:
            own[span.target_start : span.target_end] = False
        pages = np.empty(size, dtype=np.int32)
        kept = np.flatnonzero(~own)
        pages[kept] = loaded.pages[kept]
        fresh = self.pool.allocator.allocate(int(own.sum()))
        take.append(fresh)
        pages[own] = fresh
        return PageTable(pages=pages, page_size=1)


class Loaded:
    """An item's loaded spans, as copied and, if policies need it, at their new depth."""

    def __init__(
        self,
        lab: Lab,
        item: Item,
        spans: Plan,
        policies: Sequence[RecomputePolicy],
        take: list[PageIds],
    ) -> None:
        """Load once. Slots are added to `take` for the caller to free."""
        take.append(lab.pool.allocator.allocate(len(item.tokens)))
        self._plain = lab.load(item, spans, take[-1])
        self._shifted = self._plain
        drifts = [drift_for(policy, lab.drift) for policy in policies]
        drift = next((one for one in drifts if one is not None), None)
        if drift is not None:
            take.append(lab.pool.allocator.allocate(len(item.tokens)))
            self._shifted = lab.shift(item, spans, self._plain, take[-1], drift)

    def under(self, policy: RecomputePolicy) -> PageTable:
        """The page table of a policy's copies."""
        return self._shifted if policy.shifts_depth else self._plain


class _Donors:
    """Computes a donor's K/V on demand, in slots that are freed afterwards."""

    def __init__(self, lab: Lab, item: Item, plan: Plan) -> None:
        self._lab = lab
        self._tokens = {
            f"{item.case.case_id}#{number}": tokens for number, tokens in enumerate(item.donors)
        }

    @contextmanager
    def lease(self, donor_id: str, start: int, end: int) -> Iterator[DonorKv]:
        """The donor's K/V up to `end`, computed cold."""
        lab, tokens = self._lab, self._tokens[donor_id]
        with lab.slots(end) as pages:
            table = PageTable(pages=pages, page_size=1)
            run = ComputeRun(tokens=tokens[:end], start=0, table=table)
            lab.compute([run])
            kv = lab.pool.read(table, 0, end)
            yield DonorKv(tokens=tokens, pieces=(DonorPiece(start=0, kv=kv),))
