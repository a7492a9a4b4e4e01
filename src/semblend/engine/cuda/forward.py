"""A pass through a supported model on a GPU with as few launches as possible.

The architectures of `engine.cuda.fused_models` are one computation: norm, projections, rotary
attention, norm, gated products. Between matrix products, a GPU spends its time on launches and
passes over memory, so here a layer is four matrix products and five kernels of ours. The weights
are the model's own: its projections become views of joined ones. `LoadedModel.forward` through
transformers is the reference.

The last layer is computed only as far as it is read: K and V of all rows, the rest only for rows
that need logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn import functional

from semblend.engine.cache.pool import PagedPool
from semblend.engine.cuda.layer_kernels import add_norm, rotate_and_write, silu_product
from semblend.engine.cuda.tiled_attention import LayerKv, RowMap, attend_tiles
from semblend.kv.rotary_table import RotaryTable

LayerCall = Callable[[int], None]
State = tuple[torch.Tensor, torch.Tensor | None]
"""What a layer passes on: its output and the residual sum, [rows, hidden]."""
RowsHook = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Linear:
    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return functional.linear(rows, self.weight, self.bias)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Layer:
    input_norm: torch.Tensor
    qkv: _Linear
    head_norms: tuple[torch.Tensor, torch.Tensor, float] | None
    out: _Linear
    mlp_norm: torch.Tensor
    gate_up: _Linear
    down: _Linear


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """What one pass computes, on the device."""

    tokens: torch.Tensor
    """int32 [rows]"""
    map: RowMap
    wanted: torch.Tensor
    """int32 [wanted]: rows that need logits."""
    buffer: torch.Tensor
    """int32: the buffer that all of the above are views of."""
    before_layer: LayerCall | None = None
    """Called before a layer's attention to put that layer's copied K/V in place."""
    hook: RowsHook | None = None


class FusedForward:
    """The passes of one model on one GPU."""

    def __init__(self, model: Any, rotary: RotaryTable) -> None:
        self._embedding = model.model.embed_tokens.weight.detach()
        self._layers = [_layer(layer) for layer in model.model.layers]
        self._norm = model.model.norm.weight.detach()
        self._epsilon = float(model.config.rms_norm_eps)
        self._head = model.lm_head.weight.detach()
        self._rotary = rotary
        self._kvs: WeakKeyDictionary[PagedPool, list[LayerKv]] = WeakKeyDictionary()
        self._scale = float(model.model.layers[0].self_attn.scaling)

    @property
    def layers(self) -> int:
        return len(self._layers)

    def __call__(self, pool: PagedPool, rows: Rows) -> torch.Tensor:
        """Write a pass's K/V to the pool; logits [wanted, vocabulary] in the model's type."""
        return self.head(self.some_layers(pool, rows, self.embed(rows), 0, self.layers))

    @torch.inference_mode()
    def embed(self, rows: Rows) -> State:
        """The state before the first layer."""
        return functional.embedding(rows.tokens, self._embedding), None

    @torch.inference_mode()
    def some_layers(self, pool: PagedPool, rows: Rows, state: State, first: int, end: int) -> State:
        """Run layers [first, end) of a pass, starting from `state`."""
        hidden, residual = state
        kvs = self._kvs_of(pool)
        for number in range(first, end):
            layer, kv = self._layers[number], kvs[number]
            normal, residual = add_norm(hidden, residual, layer.input_norm, self._epsilon)
            queries = rotate_and_write(
                layer.qkv(normal), kv, rows.map, self._rotary, layer.head_norms
            )
            if rows.before_layer is not None:
                rows.before_layer(number)
            if rows.hook is not None:
                slots = rows.map.slots
                rows.hook(number, queries, kv.keys[slots], kv.values[slots])
            attended = attend_tiles(queries, kv, rows.map, self._scale).flatten(1)
            if number == self.layers - 1:
                attended = attended.index_select(0, rows.wanted)
                residual = residual.index_select(0, rows.wanted)
            normal, residual = add_norm(
                layer.out(attended), residual, layer.mlp_norm, self._epsilon
            )
            hidden = layer.down(silu_product(layer.gate_up(normal)))
        return hidden, residual

    @torch.inference_mode()
    def head(self, state: State) -> torch.Tensor:
        """Logits from the last layer's state."""
        normal, _ = add_norm(*state, self._norm, self._epsilon)
        return functional.linear(normal, self._head)

    def _kvs_of(self, pool: PagedPool) -> list[LayerKv]:
        """A pool's layers in the kernels' form, made once per pool."""
        kvs = self._kvs.get(pool)
        if kvs is None:
            layers = range(pool.shape.layers)
            kvs = [LayerKv(keys=pool.keys(n), values=pool.values(n)) for n in layers]
            self._kvs[pool] = kvs
        return kvs


def _layer(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    norms = None
    if hasattr(attention, "q_norm"):
        norms = (
            attention.q_norm.weight.detach(),
            attention.k_norm.weight.detach(),
            float(attention.q_norm.variance_epsilon),
        )
    return _Layer(
        input_norm=layer.input_layernorm.weight.detach(),
        qkv=_joined(attention.q_proj, attention.k_proj, attention.v_proj),
        head_norms=norms,
        out=_joined(attention.o_proj),
        mlp_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=_joined(mlp.gate_proj, mlp.up_proj),
        down=_joined(mlp.down_proj),
    )


def _joined(*modules: Any) -> _Linear:
    """Join several projections of one input. The modules' parameters become views of the result."""
    if len(modules) == 1:
        bias = modules[0].bias
        return _Linear(
            weight=modules[0].weight.detach(), bias=None if bias is None else bias.detach()
        )
    weight = torch.cat([module.weight.detach() for module in modules])
    has_bias = modules[0].bias is not None
    bias = torch.cat([module.bias.detach() for module in modules]) if has_bias else None
    start = 0
    for module in modules:
        end = start + module.weight.shape[0]
        module.weight.data = weight[start:end]
        if bias is not None:
            module.bias.data = bias[start:end]
        start = end
    return _Linear(weight=weight, bias=bias)
