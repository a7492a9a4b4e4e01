"""Completing loaded regions: holes computed in nested passes, or the region exactly.

Three steps, each taken when the one before has raised: the holes of all requests, with what
their policies add once they have seen the spans in place; every
region in full, request by request; the region in front of the request's own tail, by
the engine's own forward. The last cannot fail apart from the engine itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any, Protocol

from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Hole, Plan
from semblend.integration.probing import probes
from semblend.integration.scheduler.orders import LoadCommand, LoadFailure
from semblend.integration.scheduler.settlement import Settlements
from semblend.integration.tree.admitted import (
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
from semblend.integration.worker.port import KvLayers, Runs
from semblend.integration.worker.sequences import PassLimits, VirtualSequence, in_turn, sequences_of

logger = logging.getLogger("semblend.adapter")


class AdmittedBatch(Protocol):
    """A batch that the engine is about to run, by its rows."""

    @property
    def nested(self) -> Runs:
        """The engine's model over virtual sequences of these rows."""
        ...

    def block_of(self, row: int) -> int:
        """The request's one block: its row of the slot table."""
        ...

    def whole(self, row: int, plan: Plan) -> AbstractContextManager[None]:
        """Lend a tail that this step computes only in part slots for the rest."""
        ...

    def with_computed(self, regions: Mapping[int, Hole]) -> Any:
        """The engine's batch, which also computes these regions."""
        ...

    def tell_cached(self, request: Any, plan: Plan, *, reused: bool) -> None:
        """The engine took the whole region for a hit; say what it really was."""
        ...


class RegionPasses:
    """Puts the regions of a scheduled batch in place."""

    def __init__(
        self,
        *,
        access: KvLayers,
        copies: PoolCopies,
        limits: PassLimits,
        ranks: MeetingRanks,
        seen: Callable[[Any, PassLimits], AdmittedBatch],
    ) -> None:
        """`seen` is the engine's batch by its rows, for passes within these limits."""
        self.limits = limits
        self._access = access
        self._copies = copies
        self._ranks = ranks
        self._seen = seen

    def complete(
        self,
        batch: Any,
        loaded: Loaded,
        settlements: Settlements,
        placed: Callable[[str, Plan], None],
    ) -> tuple[Any, bool]:
        """The batch to run, and whether a pass failed. Never raises."""
        rows = self._seen(batch, self.limits)
        try:
            with self._ranks.together():
                self._copies.wait()
                rows.nested.run(in_turn(self._laid_out(rows, loaded)))
                self._ranks.meet()
        except Exception as error:
            logger.warning("SemBlend's pass over holes failed", exc_info=True)
            return self._computed(batch, rows, loaded, settlements, error), True
        for _, state, load in loads_of(loaded):
            if load.plan.reused_tokens or load.plan.continued_tokens:
                state.plan, state.account.exact_tokens = load.plan, load.plan.exact_tokens
                state.account.continued_tokens = load.plan.continued_tokens
                state.loaded(load.plan.reused_tokens)
            if load.plan.reused_tokens:
                if settlements.confirmed(state, layers=self._access.layer_count):
                    placed(state.request_id, load.plan)
            elif not load.plan.continued_tokens:
                detail = f"{load.plan.policy} recomputes every reusable token"
                settlements.declined(state, DeclineReason.POLICY_DECLINED, detail)
                computed_exactly(state)
        _tell_cached(rows, loaded, reused=True)
        return batch, False

    def _laid_out(self, rows: AdmittedBatch, loaded: Loaded) -> list[list[VirtualSequence]]:
        """What is left to compute of each load, which holds its final plan afterwards."""
        left: list[list[VirtualSequence]] = []
        asked: dict[LoadProbe, tuple[int, State, PrivateLoad]] = {}
        for row, state, load in loads_of(loaded):
            command = _command(rows, row, state, load)
            if probes(load.plan):
                asked[LoadProbe(command, load.plan, self._access)] = row, state, load
            else:
                left.append(sequences_of(command, load.plan.holes))
        for group in asked_together(list(asked), self.limits):
            with ExitStack() as lent:
                for row, _, load in map(asked.__getitem__, group):
                    lent.enter_context(rows.whole(row, load.plan))
                plans = chosen_together(group, self._access, rows.nested, self._ranks.summed)
            for probe, plan in zip(group, plans, strict=True):
                row, state, load = asked[probe]
                state.handle.load = replace(load, plan=plan)
                holes = probe.left_to_compute(plan)
                left.append(sequences_of(_command(rows, row, state, load), holes))
        return left

    def _computed(
        self,
        batch: Any,
        rows: AdmittedBatch,
        loaded: Loaded,
        settlements: Settlements,
        error: Exception,
    ) -> Any:
        """The batch with every region computed exactly."""
        left: dict[int, Hole] = {}
        for row, state, load in loads_of(loaded):
            try:
                with self._ranks.together():
                    rows.nested.run(sequences_of(_command(rows, row, state, load), [load.region]))
            except Exception:
                logger.warning("SemBlend's exact pass failed too", exc_info=True)
                left[row] = load.region
        for _, state, load in loads_of(loaded):
            settlements.failed(state, LoadFailure.by(error), blocks=len(load.region))
            computed_exactly(state)
        _tell_cached(rows, loaded, reused=False)
        return rows.with_computed(left) if left else batch


def _command(rows: AdmittedBatch, row: int, state: State, load: PrivateLoad) -> LoadCommand:
    """The load as shared code takes it."""
    plan = load.plan
    return LoadCommand(
        request_id=state.request_id,
        block_ids=(rows.block_of(row),),
        tokens=state.handle.tokens,
        start=plan.exact_tokens,
        end=plan.end,
        copies=plan.copies,
        holes=plan.holes,
    )


def _tell_cached(rows: AdmittedBatch, loaded: Loaded, *, reused: bool) -> None:
    for request, state in loaded.values():
        if state.handle.load is not None:
            rows.tell_cached(request, state.handle.load.plan, reused=reused)
