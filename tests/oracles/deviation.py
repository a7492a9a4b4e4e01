"""How far reused K/V is from what a cold prefill would have computed, layer by layer."""

from __future__ import annotations

import torch

from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.engine.batch import ComputeRun
from semblend.engine.cache.pages import PageTable
from semblend.engine.cache.pool import PagedPool
from semblend.engine.materialise import DonorSource, load_spans
from semblend.engine.model import LoadedModel
from semblend.engine.segmented import compute, runs_of_plan


def token_deviation(
    model: LoadedModel, plan: Plan, tokens: TokenArray, donors: DonorSource
) -> torch.Tensor:
    """Relative deviation of each prompt token's K/V under `plan` from a cold prefill's.

    Returns
    -------
    torch.Tensor
        [layers, 2, prompt_tokens]: |reused - cold| / |cold| over all heads, K then V. Exact
        prefixes count as computed: the plan is carried out from its tokens.
    """
    assert not plan.exact_tokens
    reused, cold = _plan_kv(model, plan, tokens, donors), _cold_kv(model, tokens)
    reused, cold = reused.double().flatten(3), cold.double().flatten(3)
    size: torch.Tensor = torch.linalg.vector_norm(cold, dim=-1).clamp(min=1e-12)
    difference: torch.Tensor = torch.linalg.vector_norm(reused - cold, dim=-1)
    return difference / size


def _plan_kv(
    model: LoadedModel, plan: Plan, tokens: TokenArray, donors: DonorSource
) -> torch.Tensor:
    pool, table = _scratch(model, len(tokens))
    load_spans(plan, tokens, table=table, pool=pool, rotary=model.rotary, donors=donors)
    compute(model, pool, runs_of_plan(plan, tokens, table))
    return pool.read(table, 0, len(tokens)).cpu()


def _cold_kv(model: LoadedModel, tokens: TokenArray) -> torch.Tensor:
    pool, table = _scratch(model, len(tokens))
    compute(model, pool, [ComputeRun(tokens=tokens, start=0, table=table)])
    return pool.read(table, 0, len(tokens)).cpu()


def _scratch(model: LoadedModel, tokens: int) -> tuple[PagedPool, PageTable]:
    """A pool for one prompt."""
    pool = PagedPool(
        model.kv_shape,
        capacity_bytes=model.kv_shape.token_bytes * tokens,
        page_size=1,
        device=model.device,
    )
    return pool, PageTable(pages=pool.allocator.allocate(tokens), page_size=1)
