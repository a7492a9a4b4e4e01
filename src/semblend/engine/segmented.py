"""Segmented prefill: spans in place, holes and tail computed in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.engine.batch import ComputeRun, LayerHook, build_batch
from semblend.engine.model import LoadedModel
from semblend.engine.pages import PageTable
from semblend.engine.pool import PagedPool


def compute(
    model: LoadedModel,
    pool: PagedPool,
    runs: Sequence[ComputeRun],
    *,
    hook: LayerHook | None = None,
) -> torch.Tensor:
    """Compute all runs in one pass; their K/V is in the pool afterwards.

    Returns
    -------
    torch.Tensor
        Logits [wanted, vocabulary] of the last token of each run that wants them.
    """
    return model.forward(build_batch(pool, runs, hook=hook))


def runs_of_plan(plan: Plan, tokens: TokenArray, table: PageTable) -> list[ComputeRun]:
    """What is left to compute once a plan's copies are in place: every hole, then the tail."""
    runs = [
        ComputeRun(tokens=tokens[hole.start : hole.end], start=hole.start, table=table)
        for hole in plan.holes
    ]
    start = max(plan.end, plan.exact_tokens)
    if runs and runs[-1].end == start:
        start = runs.pop().start
    return [*runs, ComputeRun(tokens=tokens[start:], start=start, table=table, wants_logits=True)]
