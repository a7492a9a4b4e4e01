"""Completing loaded regions: holes computed in nested passes, or the region exactly.

Three steps, each taken when the one before has raised: the holes of all requests, with what
their policies add once they have seen the spans in place; every
region in full, request by request; the region in front of the request's own tail, by
the engine's own forward. The last cannot fail apart from the engine itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
from semblend.integration.worker.policy_probe import LoadProbe
from semblend.integration.worker.pool_copies import PoolCopies
from semblend.integration.worker.port import OneRank
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
    ) -> None:
        self.limits = limits
        self._runner = runner
        self._pool = pool
        self._copies = copies
        self._loader = loader
        self._attention = attention_layers(runner.model, pool.layer_count)

    def complete(
        self, batch: Any, loaded: Loaded, settlements: Settlements, log: BackendLog
    ) -> tuple[Any, bool]:
        """The batch to run, and whether a pass failed. Never raises."""
        nested = NestedPass(self._runner, batch, self.limits, self._attention)
        try:
            self._copies.wait()
            laid_out = [
                self._sequences(batch, nested, row, state, load)
                for row, state, load in loads_of(loaded)
            ]
            nested.run(in_turn(laid_out))
        except Exception as error:
            logger.warning("SemBlend's pass over holes failed", exc_info=True)
            return self._computed(batch, nested, loaded, settlements, error), True
        for _, state, load in loads_of(loaded):
            if load.plan.reused_tokens:
                state.plan, state.account.exact_tokens = load.plan, load.plan.exact_tokens
                state.loaded(load.plan.reused_tokens)
                if settlements.confirmed(state, layers=self._pool.layer_count):
                    log.placed(state.request_id, load.plan)
            else:
                detail = f"{load.plan.policy} recomputes every reusable token"
                settlements.declined(state, DeclineReason.POLICY_DECLINED, detail)
                computed_exactly(state)
        for request, state in loaded.values():
            correct_cached_tokens(request, state, reused=True)
        return batch, False

    def _sequences(
        self, batch: Any, nested: NestedPass, row: int, state: State, load: PrivateLoad
    ) -> list[VirtualSequence]:
        """What is left to compute of a load, which holds its final plan afterwards."""
        command = _command(batch, row, state, load)
        if not probes(load.plan):
            return sequences_of(command, load.plan.holes)
        probe = LoadProbe(command, load.plan, self._pool)
        with self._whole_row(batch, row, load.plan):
            plan = probe.chosen(nested, OneRank().summed)
        state.handle.load = replace(load, plan=plan)
        return sequences_of(command, probe.left_to_compute(plan))

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
    kept = plan.reused_tokens if reused else 0
    request.cached_tokens -= region - kept
    request.cached_tokens_host -= region
    request.cached_tokens_device += kept
