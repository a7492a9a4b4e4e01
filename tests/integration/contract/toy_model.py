"""A two-layer transformer over a paged K/V cache, in plain torch: the toy engine's model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from semblend.integration.worker.port import BeforeLayer, KvAccess, Watch
from semblend.kv.layout import block_slots
from semblend.kv.paged_kv import PagedKv
from semblend.kv.rotary_table import RotaryTable

LAYERS, HEADS, DIM, VOCABULARY, POSITIONS = 2, 2, 16, 512, 2048
_WIDTH = HEADS * DIM


class ToyCache(KvAccess):
    """K/V of all tokens, [layers, 2, blocks, block_size, heads, dim]; see `KvAccess`."""

    block_size, kv_heads, head_dim = 16, HEADS, DIM
    layer_count = LAYERS
    dtype, device = torch.float32, torch.device("cpu")
    scratch_block = 0

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.kv = torch.zeros(LAYERS, 2, blocks, self.block_size, HEADS, DIM)
        self.pool = PagedKv(
            keys=tuple(self.kv[:, 0].unbind()), values=tuple(self.kv[:, 1].unbind())
        )

    @property
    def destination(self) -> PagedKv:
        assert self.pool is not None
        return self.pool

    def slots(self, block_ids: Sequence[int], start: int, end: int) -> torch.Tensor:
        size = self.block_size
        return torch.from_numpy(
            block_slots(block_ids, start, end, block_size=size, blocks=self.blocks)
        )

    def read(self, block_ids: Sequence[int], start: int, end: int) -> torch.Tensor:
        slots = self.slots(block_ids, start, end)
        return self.kv.flatten(2, 3)[:, :, slots]


class ToyModel(torch.nn.Module):
    """Writes K/V of the tokens it is given into their slots, then attends to all before them."""

    def __init__(self, cache: ToyCache) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.cache = cache
        self.embedding = torch.nn.Parameter(torch.randn(VOCABULARY, _WIDTH))
        self.inward = torch.nn.Parameter(torch.randn(LAYERS, 3, _WIDTH, _WIDTH) / _WIDTH**0.5)
        self.outward = torch.nn.Parameter(torch.randn(LAYERS, _WIDTH, _WIDTH) / _WIDTH**0.5)
        steps = 10_000.0 ** -(torch.arange(DIM // 2) / (DIM // 2))
        angles = torch.arange(POSITIONS)[:, None] * steps
        self.table = RotaryTable(cos=angles.cos(), sin=angles.sin())

    @torch.inference_mode()
    def forward(
        self,
        tokens: np.ndarray,
        start: int,
        end: int,
        blocks: Sequence[int],
        shift: int = 0,
        watch: Watch | None = None,
        before_layer: BeforeLayer | None = None,
    ) -> torch.Tensor:
        """Log-probabilities behind tokens [start, end) of a prompt, [tokens, vocabulary]."""
        slots = self.cache.slots(blocks, start, end)
        hidden = self.embedding[torch.from_numpy(tokens[start:end].astype(np.int64))]
        positions = torch.arange(start, end) + shift
        for layer in range(LAYERS):
            normed = torch.nn.functional.rms_norm(hidden, (_WIDTH,))
            query, key, value = (part.view(-1, HEADS, DIM) for part in normed @ self.inward[layer])
            flat = self.cache.kv[layer].flatten(1, 2)
            flat[0, slots], flat[1, slots] = self._turned(key, positions), value
            if before_layer is not None:
                before_layer(layer)
            keys, values = self.cache.read_layer(layer, blocks, 0, end)
            query = self._turned(query, positions)
            scores = torch.einsum("qhd,khd->hqk", query, keys) / DIM**0.5
            later = torch.arange(end)[None] > torch.arange(start, end)[:, None]
            weights = scores.masked_fill(later, -torch.inf).softmax(-1)
            attended = torch.einsum("hqk,khd->qhd", weights, values).flatten(1)
            if watch is not None and layer in watch.layers:
                watch.see(layer, query.flatten(1))
            hidden = hidden + attended @ self.outward[layer]
        return (hidden @ self.embedding.T).log_softmax(-1)

    def _turned(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        cos, sin = self.table.cos[positions][:, None], self.table.sin[positions][:, None]
        left, right = heads.chunk(2, -1)
        return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)
