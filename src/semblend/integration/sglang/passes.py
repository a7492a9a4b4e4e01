"""Completing loaded regions: holes computed in nested passes, or the region exactly.

Three steps, each taken when the one before has raised: the holes of all requests, with what
their policies add once they have seen the spans in place; every
region in full, request by request; the region in front of the request's own tail, by
the engine's own forward. The last cannot fail apart from the engine itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch

from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Hole, Plan
from semblend.integration.probing import probes
from semblend.integration.scheduler.orders import LoadCommand, LoadFailure
from semblend.integration.scheduler.settlement import Settlements
from semblend.integration.sglang.exact_recompute import with_regions_computed
from semblend.integration.sglang.kv_pool import KvPool
from semblend.integration.sglang.loading import SpanLoader
from semblend.integration.sglang.log_lines import BackendLog, logger
from semblend.integration.sglang.nested_pass import NestedPass, attention_layers
from semblend.integration.sglang.request_state import (
    Loaded,
    PrivateLoad,
    State,
    computed_exactly,
    loads_of,
)
from semblend.integration.worker.host_ranks import MeetingRanks
from semblend.integration.worker.policy_probe import (
    LoadProbe,
    asked_together,
    chosen_together,
)
from semblend.integration.worker.pool_copies import PoolCopies
from semblend.integration.worker.sequences import PassLimits, VirtualSequence, in_turn, sequences_of


class RegionPasses:
    """Puts the regions of a scheduled batch in place."""

    def __init__(
        self,
        runner: Any,
        *,
        pool: KvPool,
        copies: PoolCopies,
        limits: PassLimits,
        loader: SpanLoader,
        ranks: MeetingRanks,
    ) -> None:
        self.limits = limits
        self._ranks = ranks
        self._runner = runner
        self._pool = pool
        self._copies = copies
        self._loader = loader
        self._attention = attention_layers(runner.model, pool.layer_count)

    def complete(
        self, batch: Any, loaded: Loaded, settlements: Settlements, log: BackendLog
    ) -> tuple[Any, bool]:
        """The batch to run, and whether a pass failed. Never raises."""
        nested = NestedPass(self._runner, batch, self.limits, self._ranks, self._attention)
        try:
            with self._ranks.together():
                self._copies.wait()
                nested.run(in_turn(self._laid_out(batch, nested, loaded)))
                self._ranks.meet()
        except Exception as error:
            logger.warning("SemBlend's pass over holes failed", exc_info=True)
            return self._computed(batch, nested, loaded, settlements, error), True
        for _, state, load in loads_of(loaded):
            if load.plan.reused_tokens or load.plan.continued_tokens:
                state.plan, state.account.exact_tokens = load.plan, load.plan.exact_tokens
                state.account.continued_tokens = load.plan.continued_tokens
                state.loaded(load.plan.reused_tokens)
            if load.plan.reused_tokens:
                if settlements.confirmed(state, layers=self._pool.layer_count):
                    log.placed(state.request_id, load.plan)
            elif not load.plan.continued_tokens:
                detail = f"{load.plan.policy} recomputes every reusable token"
                settlements.declined(state, DeclineReason.POLICY_DECLINED, detail)
                computed_exactly(state)
        for request, state in loaded.values():
            correct_cached_tokens(request, state, reused=True)
        return batch, False

    def _laid_out(
        self, batch: Any, nested: NestedPass, loaded: Loaded
    ) -> list[list[VirtualSequence]]:
        """What is left to compute of each load, which holds its final plan afterwards."""
        left: list[list[VirtualSequence]] = []
        asked: dict[LoadProbe, tuple[int, State, PrivateLoad]] = {}
        for row, state, load in loads_of(loaded):
            command = _command(batch, row, state, load)
            if probes(load.plan):
                asked[LoadProbe(command, load.plan, self._pool)] = row, state, load
            else:
                left.append(sequences_of(command, load.plan.holes))
        for group in asked_together(list(asked), self.limits):
            with ExitStack() as lent:
                for row, _, load in map(asked.__getitem__, group):
                    lent.enter_context(self._whole_row(batch, row, load.plan))
                plans = chosen_together(group, self._pool, nested, self._ranks.summed)
            for probe, plan in zip(group, plans, strict=True):
                row, state, load = asked[probe]
                state.handle.load = replace(load, plan=plan)
                holes = probe.left_to_compute(plan)
                left.append(sequences_of(_command(batch, row, state, load), holes))
        return left

    @contextmanager
    def _whole_row(self, batch: Any, row: int, plan: Plan) -> Iterator[None]:
        """A tail that this step computes only in part is lent slots for the rest."""
        present = batch.prefix_lens[row] + batch.extend_lens[row]
        missing = plan.prompt_tokens - present
        if missing <= 0:
            yield
            return
        line = self._table[int(batch.req_pool_indices_cpu[row])]
        taken = self._loader.take(missing)
        try:
            line[present : plan.prompt_tokens] = taken[:missing].to(line.dtype)
            yield
        finally:
            self._loader.give_back(taken)

    @property
    def _table(self) -> torch.Tensor:
        table: torch.Tensor = self._runner.req_to_token_pool.req_to_token
        return table

    def _computed(
        self,
        batch: Any,
        nested: NestedPass,
        loaded: Loaded,
        settlements: Settlements,
        error: Exception,
    ) -> Any:
        """The batch with every region computed exactly."""
        left: dict[int, Hole] = {}
        for row, state, load in loads_of(loaded):
            try:
                with self._ranks.together():
                    nested.run(sequences_of(_command(batch, row, state, load), [load.region]))
            except Exception:
                logger.warning("SemBlend's exact pass failed too", exc_info=True)
                left[row] = load.region
        for _, state, load in loads_of(loaded):
            settlements.failed(state, LoadFailure.by(error), blocks=len(load.region))
            computed_exactly(state)
        for request, state in loaded.values():
            correct_cached_tokens(request, state, reused=False)
        return with_regions_computed(batch, left, self._table) if left else batch


def _command(batch: Any, row: int, state: State, load: PrivateLoad) -> LoadCommand:
    """The load as shared code takes it; its one block is the request's row of the slot table."""
    plan = load.plan
    return LoadCommand(
        request_id=state.request_id,
        block_ids=(int(batch.req_pool_indices_cpu[row]),),
        tokens=state.handle.tokens,
        start=plan.exact_tokens,
        end=plan.end,
        copies=plan.copies,
        holes=plan.holes,
    )


def correct_cached_tokens(request: Any, state: State, *, reused: bool) -> None:
    """SGLang took the whole region for a hit in host memory; say what it really was."""
    if state.handle.load is None or request.retracted_stain:
        return
    plan = state.handle.load.plan
    region = plan.end - plan.exact_tokens
    kept = plan.continued_tokens + plan.reused_tokens if reused else 0
    request.cached_tokens -= region - kept
    request.cached_tokens_host -= region
    request.cached_tokens_device += kept
