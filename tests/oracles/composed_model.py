"""Compositions computed by transformers' own models in double precision.

For architectures whose mathematics is too long to write down a second time: windows, sinks, soft
caps, several rotary tables, latent rows. Nothing here rotates anything. A donor is read at the
positions its span moves to, which by the nature of rotary positions gives the K/V that moving it
must give.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from semblend.core.plan import Span
from semblend.core.tokens import TokenArray


@dataclass(frozen=True, kw_only=True)
class Composed:
    """What a model computes for one prompt."""

    kv: torch.Tensor
    """[layers, parts, tokens, kv_heads, head_dim], as an engine keeps it."""
    logits: torch.Tensor
    """[tokens, vocabulary]; rows of borrowed positions mean nothing."""


def compose(model: Any, donor: TokenArray, target: TokenArray, spans: Iterable[Span]) -> Composed:
    """Compute `target` with `spans` of one donor in place."""
    model = copy.deepcopy(model).double().eval()
    model.set_attn_implementation("eager")
    model.set_experts_implementation("eager")
    lent: dict[int, tuple[int, _Reading]] = {}
    for span in spans:
        reading = _Reading()
        _read(model, donor, reading, shift=span.delta)
        for here in range(span.target_start, span.target_end):
            lent[here] = (here - span.delta, reading)
    result = _Reading(lent=lent)
    logits = _read(model, target, result)
    return Composed(kv=_as_kept(model, result), logits=logits)


class _Reading(DynamicCache):
    """Keeps all K/V, windows or not, with lent positions in the place of computed ones."""

    def __init__(self, lent: dict[int, tuple[int, _Reading]] | None = None) -> None:
        super().__init__()
        self.lent = lent or {}
        self.kept: dict[int, list[torch.Tensor]] = {}
        """K and V of each layer, or latent rows and what rotates; [1, heads, tokens, width]."""

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *_: Any, **__: Any) -> Any:
        both = [key_states.clone(), value_states.clone()]  # [1, heads, tokens, dim]
        for here, (there, source) in self.lent.items():
            for part, own in enumerate(both):
                own[:, :, here] = source.kept[layer_idx][part][:, :, there]
        self.kept[layer_idx] = both
        return tuple(both)


@torch.no_grad()
def _read(model: Any, tokens: TokenArray, reading: _Reading, *, shift: int = 0) -> torch.Tensor:
    ids = torch.from_numpy(tokens.astype("int64"))[None]
    positions = torch.arange(len(tokens))[None] + shift
    logits: torch.Tensor = model(
        input_ids=ids, position_ids=positions, past_key_values=reading, use_cache=True
    ).logits[0]
    return logits


def _as_kept(model: Any, reading: _Reading) -> torch.Tensor:
    layers = [
        [part[0].transpose(0, 1) for part in reading.kept[number]]
        for number in sorted(reading.kept)
    ]
    if not getattr(model.config, "kv_lora_rank", None):
        return torch.stack([torch.stack(parts) for parts in layers])
    if model.config.model_type != "deepseek_v2":
        # Rotated as halves: first all even numbers of a row, then all odd ones.
        layers = [
            [rows, torch.stack(turned.chunk(2, dim=-1), dim=-1).flatten(-2)]
            for rows, turned in layers
        ]
    return torch.stack([torch.cat(parts, dim=-1)[None] for parts in layers])
