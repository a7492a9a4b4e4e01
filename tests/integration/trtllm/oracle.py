"""Segmented reuse by hand: plain transformers, float64 rotation, no code of the adapter's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache


@dataclass(frozen=True)
class Borrowed:
    """Target tokens [start, end) whose K/V is a donor's at positions start - delta on."""

    start: int
    end: int
    donor: tuple[int, ...]
    delta: int


@torch.no_grad()
def kv_of(model: Any, tokens: Sequence[int], past: DynamicCache | None = None) -> DynamicCache:
    cache = DynamicCache(config=model.config) if past is None else past
    model(input_ids=torch.tensor([list(tokens)]), past_key_values=cache, use_cache=True)
    return cache


def turned(model: Any, keys: torch.Tensor, delta: int) -> torch.Tensor:
    """K [1, heads, tokens, head_dim] moved by `delta` positions, in float64."""
    angles = model.model.rotary_emb.inv_freq.double() * delta
    cos, sin = angles.cos(), angles.sin()
    half = keys.shape[-1] // 2
    one, two = keys[..., :half].double(), keys[..., half:].double()
    return torch.cat((one * cos - two * sin, two * cos + one * sin), dim=-1).float()


@torch.no_grad()
def logits_by_hand(model: Any, prompt: Sequence[int], borrowed: Sequence[Borrowed]) -> torch.Tensor:
    """Logits of the prompt's last token with the borrowed runs in place, the rest computed."""
    prompt = [int(token) for token in prompt]
    cache = DynamicCache(config=model.config)
    position, logits = 0, torch.empty(0)
    for run in [*sorted(borrowed, key=lambda one: one.start), None]:
        stop = len(prompt) if run is None else run.start
        if stop > position:
            output = model(
                input_ids=torch.tensor([prompt[position:stop]]),
                position_ids=torch.arange(position, stop)[None],
                past_key_values=cache,
                use_cache=True,
            )
            logits = output.logits[0, -1].float()
        if run is None:
            break
        donor = kv_of(model, run.donor)
        first, last = run.start - run.delta, run.end - run.delta
        assert list(run.donor[first:last]) == prompt[run.start : run.end]
        for layer, held in enumerate(donor.layers):
            keys = turned(model, held.keys[:, :, first:last], run.delta)
            cache.update(keys, held.values[:, :, first:last], layer)
        position = run.end
    return logits
