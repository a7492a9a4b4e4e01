"""A differentiable model of reuse: K/V after one prefix, borrowed by a prompt with another.

It computes what the engine does with a moved document (copy, rotate, compute the rest), with plain
transformers, in batches and with gradients. Answers are judged on the engine itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from semblend.core.tokens import TokenArray

Layers = list[tuple[Tensor, Tensor]]
"""K and V of every layer, each of shape [batch, heads, tokens, dimension]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reuse:
    """A model that lends K/V."""

    model: Any
    device: torch.device

    @classmethod
    def load(cls, name: str, device: str) -> Reuse:
        """Load in float32, the precision gradients need."""
        model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
        return cls.of(model, device)

    @classmethod
    def of(cls, model: Any, device: str) -> Reuse:
        """Wrap a model in memory."""
        model = model.to(device).eval()
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        return cls(model=model, device=torch.device(device))

    @property
    def embeddings(self) -> Tensor:
        """[vocabulary, width]."""
        weight: Tensor = self.model.get_input_embeddings().weight
        return weight

    def ids(self, tokens: TokenArray) -> Tensor:
        """[1, tokens]."""
        return torch.as_tensor(tokens, dtype=torch.long, device=self.device)[None]

    def run(self, embeds: Tensor, past: Layers | None = None) -> tuple[Layers, Tensor]:
        """K/V of the past and these tokens, and the last hidden states."""
        cache = DynamicCache()
        start = 0
        for layer, (keys, values) in enumerate(past or ()):
            start = keys.shape[2]
            cache.update(
                keys.expand(len(embeds), -1, -1, -1), values.expand(len(embeds), -1, -1, -1), layer
            )
        positions = torch.arange(start, start + embeds.shape[1], device=self.device)[None]
        found = self.model.model(
            inputs_embeds=embeds, past_key_values=cache, position_ids=positions, use_cache=True
        )
        kept = [(layer.keys, layer.values) for layer in found.past_key_values.layers]
        return kept, found.last_hidden_state

    def read(self, tokens: TokenArray, past: Layers | None = None) -> Layers:
        """K/V of the past and these tokens, without gradients."""
        with torch.no_grad():
            return self.run(self.embeddings[self.ids(tokens)], past)[0]

    def moved(self, layers: Layers, start: int, end: int, to: int) -> Layers:
        """K/V of [start, end), with K rotated so that it starts at `to`."""
        cos, sin = self._rotation(to - start)
        return [
            (_rotated(keys[:, :, start:end], cos, sin), values[:, :, start:end])
            for keys, values in layers
        ]

    def loss(self, context: Layers, tail: TokenArray, answer: TokenArray) -> Tensor:
        """Negative log-likelihood of an answer after a tail, shape [batch]."""
        text = torch.cat((self.ids(tail), self.ids(answer)), dim=1)[:, :-1]
        batch = context[0][0].shape[0]
        embeds = self.embeddings[text].expand(batch, -1, -1)
        hidden = self.run(embeds, context)[1][:, len(tail) - 1 :]
        logits = self.model.lm_head(hidden)
        wanted = self.ids(answer).expand(batch, -1)
        nll = torch.nn.functional.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")
        return nll.sum(dim=1)

    def _rotation(self, distance: int) -> tuple[Tensor, Tensor]:
        frequencies = self.model.model.rotary_emb.inv_freq
        angles = distance * torch.cat((frequencies, frequencies)).to(self.device)
        return angles.cos(), angles.sin()


def joined(first: Layers, second: Layers) -> Layers:
    """One context after the other."""
    return [
        (
            torch.cat((k.expand(len(more_k), -1, -1, -1), more_k), dim=2),
            torch.cat((v.expand(len(more_v), -1, -1, -1), more_v), dim=2),
        )
        for (k, v), (more_k, more_v) in zip(first, second, strict=True)
    ]


def cut(layers: Layers, start: int, end: int | None = None) -> Layers:
    """Some of the tokens."""
    return [(keys[:, :, start:end], values[:, :, start:end]) for keys, values in layers]


def deviation(exact: Layers, borrowed: Layers) -> Tensor:
    """How far borrowed V is from exact V, by token, shape [batch, tokens].

    Relative, over the layers at 40 to 60 % of the depth, where what a token refers to is settled
    and later differences have not yet piled up.
    """
    depth = len(exact)
    chosen = range(int(0.4 * depth), max(int(0.6 * depth), int(0.4 * depth) + 1))
    shares = [
        (borrowed[at][1] - exact[at][1]).norm(dim=(1, 3)) / exact[at][1].norm(dim=(1, 3))
        for at in chosen
    ]
    return torch.stack(shares).mean(dim=0)


def _rotated(keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = keys.shape[-1] // 2
    turned = torch.cat((-keys[..., half:], keys[..., :half]), dim=-1)
    return keys * cos + turned * sin
