"""Completing loaded regions: holes computed in nested passes, or the region exactly.

Three steps, each taken when the one before has raised: the holes of all requests; every
region in full, request by request; the region in front of the request's own tail, by
the engine's own forward. The last cannot fail apart from the engine itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Hole
from semblend.integration.sglang.kv_pool import KvPool
from semblend.integration.sglang.log_lines import logger
from semblend.integration.sglang.nested_pass import NestedPass
from semblend.integration.sglang.recompute import with_regions_computed
from semblend.integration.sglang.request_state import RequestState
from semblend.integration.sglang.settlement import Settlements

Loaded = Mapping[int, tuple[Any, RequestState]]
"""Row of the batch to its request and state; the state's load is set."""


class RegionPasses:
    """Puts the regions of a scheduled batch in place."""

    def __init__(self, runner: Any, pool: KvPool, nested: NestedPass) -> None:
        self._runner = runner
        self._pool = pool
        self._nested = nested

    def complete(self, batch: Any, loaded: Loaded, settlements: Settlements) -> tuple[Any, bool]:
        """The batch to run, and whether a pass failed. Never raises."""
        try:
            self._pool.wait_for_copies()
            self._nested.run(batch, {row: state.load.plan.holes for row, state in _loads(loaded)})
        except Exception as error:
            logger.warning("SemBlend's pass over holes failed", exc_info=True)
            return self._computed(batch, loaded, settlements, error), True
        for request, state in loaded.values():
            settlements.confirmed(state, layers=self._pool.layers)
            correct_cached_tokens(request, state, reused=True)
        return batch, False

    def _computed(
        self, batch: Any, loaded: Loaded, settlements: Settlements, error: Exception
    ) -> Any:
        """The batch with every region computed exactly."""
        left: dict[int, Hole] = {}
        for row, state in _loads(loaded):
            region = state.load.region
            try:
                self._nested.run(batch, {row: (region,)})
            except Exception:
                logger.warning("SemBlend's exact pass failed too", exc_info=True)
                left[row] = region
        for request, state in loaded.values():
            settlements.failed(
                state, DeclineReason.MATERIALISATION_FAILED, f"{type(error).__name__}: {error}"
            )
            correct_cached_tokens(request, state, reused=False)
        if not left:
            return batch
        table = self._runner.req_to_token_pool.req_to_token
        return with_regions_computed(batch, left, table)


def _loads(loaded: Loaded) -> list[tuple[int, Any]]:
    return [(row, state) for row, (_, state) in loaded.items() if state.load is not None]


def correct_cached_tokens(request: Any, state: RequestState, *, reused: bool) -> None:
    """SGLang took the whole region for a hit in host memory; say what it really was."""
    if state.load is None or request.retracted_stain:
        return
    plan = state.load.plan
    region = plan.end - plan.exact_tokens
    kept = plan.reused_tokens if reused else 0
    request.cached_tokens -= region - kept
    request.cached_tokens_host -= region
    request.cached_tokens_device += kept
