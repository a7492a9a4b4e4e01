"""Segmented prefill: with spans in place, holes and tail are computed in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.engine.batch import ComputeRun, LayerHook, build_batch
from semblend.engine.cache.pages import PageTable
from semblend.engine.cache.pool import PagedPool
from semblend.engine.model import LoadedModel
from semblend.planning.recompute import plan_runs


def compute(
    model: LoadedModel,
    pool: PagedPool,
    runs: Sequence[ComputeRun],
    *,
    hook: LayerHook | None = None,
    before_layer: Callable[[int], None] | None = None,
    replay: bool = True,
) -> torch.Tensor:
    """Compute all runs in one pass and write their K/V to the pool.

    Parameters
    ----------
    before_layer
        Called with each layer once its rows are written and before they attend: the last
        moment to put that layer's copied K/V in place.
    replay
        False launches every kernel. Use it for passes that are rarely alike, which would evict
        recorded serving passes, and as the reference for replaying.

    Returns
    -------
    torch.Tensor
        Logits [wanted, vocabulary] of the last `logit_rows` tokens of each run, in order.
    """
    if model.passes is not None:
        return model.passes.compute(pool, runs, hook=hook, before_layer=before_layer, replay=replay)
    return model.forward(build_batch(pool, runs, hook=_both(before_layer, hook)))


def _both(before_layer: Callable[[int], None] | None, hook: LayerHook | None) -> LayerHook | None:
    """Combine both hooks, in this order."""
    if before_layer is None:
        return hook

    def call(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        before_layer(layer)
        if hook is not None:
            hook(layer, query, key, value)

    return call


def runs_of_plan(plan: Plan, tokens: TokenArray, table: PageTable) -> list[ComputeRun]:
    """What remains of a plan as runs of one pass. The last run yields the next token's logits."""
    return [
        ComputeRun(
            tokens=tokens[run.start : run.end],
            start=run.start,
            table=table,
            logit_rows=int(run.end == plan.prompt_tokens),
        )
        for run in plan_runs(plan)
    ]
