"""Probes for dynamic policies: attention and deviation over reused K/V.

A probe runs the first few layers and stops there. The tail's probe computes holes and tail in
the request's own pages, all layers' K/V of them, so that what it computed stands as far as the
policy adds nothing before it. The others compute every token, in a separate pool.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch

from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.engine.batch import ComputeRun, LayerHook
from semblend.engine.cache.pages import PageTable
from semblend.engine.cache.pool import PagedPool
from semblend.engine.model import LoadedModel
from semblend.engine.segmented import compute, runs_of_plan
from semblend.kv.attention_weights import TAIL_QUERIES, attention_weights
from semblend.planning.policies.base import Scores

ROWS_AT_ONCE = 256
"""Limits the attention weights held at once: rows x heads x keys."""


class _EnoughLayersError(Exception):
    """Raised inside a pass once the requested layers are done."""


@dataclass(slots=True, kw_only=True)
class PoolProbe:
    """Probes for one request whose copies are in place."""

    model: LoadedModel
    pool: PagedPool
    table: PageTable
    tokens: TokenArray
    plan: Plan
    computed: float = field(default=0.0, init=False)
    """Cost of the probes, in tokens computed through all layers."""
    filled: bool = field(default=False, init=False)
    """Whether holes and tail hold K/V that was computed over the plan's copies."""

    def tail_attention(self) -> Scores:
        """Attention mass of the last queries on each token, over all heads of the later layers."""
        layers = self.model.kv_shape.layers
        watched = range(layers // 2, layers)
        size = len(self.tokens)
        asked = min(TAIL_QUERIES, size - self.plan.end)
        runs = runs_of_plan(self.plan, self.tokens, self.table)
        slots = torch.from_numpy(self.table.slots(0, size)).to(self.pool.data.device)
        mass = torch.zeros(size, dtype=torch.float64)

        def watch(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
            if layer in watched:
                keys = self.pool.keys(layer).index_select(0, slots)
                weights = attention_weights(
                    query[-asked:], keys, first=size - asked, window=self.model.windows[layer]
                )
                mass.add_(weights.sum(dim=(0, 1)).double().cpu())
            if layer == watched[-1]:
                raise _EnoughLayersError

        self._pass(self.pool, runs, watch, layers=watched[-1] + 1)
        self.filled = True
        return mass.numpy()

    def deviation(self, layers: int) -> Scores:
        """Mean relative deviation of each token's K and V over layers 1 to `layers` - 1.

        Those layers are computed for all tokens, exactly as in a cold prefill. Layer 0 never
        deviates.
        """
        layers = min(layers, self.model.kv_shape.layers)
        pool, table, hook = self._scratch(layers)
        self._pass(pool, self._all_tokens(table), hook, layers=layers)
        size = len(self.tokens)
        cold = pool.read(table, 0, size)[1:]
        borrowed = _read_layers(self.pool, self.table, size, layers)[1:]
        norm = torch.linalg.vector_norm(cold.flatten(3).float(), dim=-1).clamp(min=1e-9)
        difference = torch.linalg.vector_norm((borrowed - cold).flatten(3).float(), dim=-1)
        scores = (difference / norm).mean(dim=(0, 1)).double().cpu().numpy()
        copied = np.zeros(size, dtype=np.bool_)
        for span in self.plan.copies:
            copied[span.target_start : span.target_end] = True
        result: Scores = np.where(copied, scores, 0.0)
        return result

    def edit_attention(self, layers: int) -> Scores:
        """Attention mass each token puts on tokens outside spans, over layers up to `layers`."""
        layers = min(layers, self.model.kv_shape.layers)
        size = len(self.tokens)
        device = self.pool.data.device
        changed = torch.zeros(size, device=device)
        for gap in self.plan.gaps:
            changed[gap.start : gap.end] = 1.0
        pool, table, stop = self._scratch(layers)
        mass = torch.zeros(size, dtype=torch.float64)

        def watch(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
            if layer:
                for start in range(0, size, ROWS_AT_ONCE):
                    end = min(size, start + ROWS_AT_ONCE)
                    weights = attention_weights(
                        query[start:end],
                        key[:end],
                        first=start,
                        window=self.model.windows[layer],
                    )
                    looked = weights @ changed[:end]
                    mass[start:end] += looked.amax(dim=0).double().cpu()
            stop(layer, query, key, value)

        self._pass(pool, self._all_tokens(table), watch, layers=layers)
        return mass.numpy()

    def _pass(
        self, pool: PagedPool, runs: list[ComputeRun], hook: LayerHook, *, layers: int
    ) -> None:
        rows = sum(len(run.tokens) for run in runs)
        self.computed += rows * layers / self.model.kv_shape.layers
        try:
            compute(self.model, pool, runs, hook=hook)
        except _EnoughLayersError:
            return

    def _scratch(self, layers: int) -> tuple[PagedPool, PageTable, LayerHook]:
        """A pool for this prompt's first layers, and the hook that stops the pass there."""
        shape = replace(self.model.kv_shape, layers=layers)
        size = len(self.tokens)
        pool = PagedPool(
            shape,
            capacity_bytes=shape.token_bytes * size,
            page_size=1,
            device=self.pool.data.device,
        )
        table = PageTable(pages=pool.allocator.allocate(size), page_size=1)

        def stop(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
            if layer == layers - 1:
                raise _EnoughLayersError

        return pool, table, stop

    def _all_tokens(self, table: PageTable) -> list[ComputeRun]:
        return [ComputeRun(tokens=self.tokens, start=0, table=table)]


def _read_layers(pool: PagedPool, table: PageTable, size: int, layers: int) -> torch.Tensor:
    slots = torch.from_numpy(table.slots(0, size)).to(pool.data.device)
    return pool.by_slot[:layers].index_select(2, slots)
