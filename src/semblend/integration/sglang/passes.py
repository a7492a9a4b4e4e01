"""Completing loaded regions: holes computed in nested passes, or the region exactly.

Three steps, each taken when the one before has raised: the holes of all requests, with what
their policies add once they have seen the spans in place; every
region in full, request by request; the region in front of the request's own tail, by
the engine's own forward. The last cannot fail apart from the engine itself.
"""

from __future__ import annotations

from typing import Any

from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Hole
from semblend.integration.scheduler.orders import LoadFailure
from semblend.integration.scheduler.settlement import Settlements
from semblend.integration.sglang.kv_pool import KvPool
from semblend.integration.sglang.log_lines import BackendLog, logger
from semblend.integration.sglang.nested_pass import NestedPass
from semblend.integration.sglang.recompute import with_regions_computed
from semblend.integration.sglang.request_state import (
    Loaded,
    State,
    computed_exactly,
    loads_of,
    not_carried_out,
)
from semblend.integration.sglang.tail_probe import PolicyProbe


class RegionPasses:
    """Puts the regions of a scheduled batch in place."""

    def __init__(
        self, runner: Any, *, pool: KvPool, nested: NestedPass, probe: PolicyProbe
    ) -> None:
        self._runner = runner
        self._pool = pool
        self._nested = nested
        self._probe = probe

    def complete(
        self, batch: Any, loaded: Loaded, settlements: Settlements, log: BackendLog
    ) -> tuple[Any, bool]:
        """The batch to run, and whether a pass failed. Never raises."""
        try:
            self._pool.wait_for_copies()
            self._nested.run(batch, self._probe.holes(batch, loaded))
        except Exception as error:
            logger.warning("SemBlend's pass over holes failed", exc_info=True)
            return self._computed(batch, loaded, settlements, error), True
        for _, state, load in loads_of(loaded):
            if load.plan.reused_tokens:
                state.plan, state.account.exact_tokens = load.plan, load.plan.exact_tokens
                state.loaded(load.plan.reused_tokens)
                if settlements.confirmed(state, layers=self._pool.layers):
                    log.placed(state.request_id, load.plan)
            else:
                detail = f"{load.plan.policy} recomputes every reusable token"
                not_carried_out(state, log, DeclineReason.POLICY_DECLINED, detail)
                computed_exactly(state)
        for request, state in loaded.values():
            correct_cached_tokens(request, state, reused=True)
        return batch, False

    def _computed(
        self, batch: Any, loaded: Loaded, settlements: Settlements, error: Exception
    ) -> Any:
        """The batch with every region computed exactly."""
        left: dict[int, Hole] = {}
        for row, _, load in loads_of(loaded):
            region = load.region
            try:
                self._nested.run(batch, {row: (region,)})
            except Exception:
                logger.warning("SemBlend's exact pass failed too", exc_info=True)
                left[row] = region
        for _, state, load in loads_of(loaded):
            settlements.failed(state, LoadFailure.by(error), blocks=len(load.region))
            computed_exactly(state)
        for request, state in loaded.values():
            correct_cached_tokens(request, state, reused=False)
        if not left:
            return batch
        table = self._runner.req_to_token_pool.req_to_token
        return with_regions_computed(batch, left, table)


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
