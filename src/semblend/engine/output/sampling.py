"""Chooses the next token from logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from semblend.core.tokens import TokenArray
from semblend.engine.api import SamplingParams, TokenLogprob


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenToken:
    """A chosen token with the model's own log-probability (before temperature and cuts)."""

    token_id: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


def make_generator(params: SamplingParams) -> torch.Generator | None:
    """A generator per request, so that concurrent requests cannot change its draws."""
    if params.temperature == 0.0:
        return None
    generator = torch.Generator()
    if params.seed is None:
        generator.seed()
    else:
        generator.manual_seed(params.seed)
    return generator


def choose(
    logits: torch.Tensor,
    params: SamplingParams,
    generator: torch.Generator | None,
    *,
    prompt: TokenArray | Sequence[int] = (),
    output: Sequence[int] = (),
    allowed: torch.Tensor | None = None,
) -> ChosenToken:
    """Pick a token from one row of float32 logits, [vocabulary], on the host.

    Penalties use `prompt` and `output`, the tokens so far. `allowed`, [vocabulary], bool, is what a
    grammar permits.
    """
    adjusted = _adjusted(logits, params, prompt, output)
    if allowed is not None:
        adjusted = adjusted.masked_fill(~allowed, float("-inf"))
    if generator is None:
        token_id = int(adjusted.argmax())
    else:
        token_id = int(torch.multinomial(_kept(adjusted, params), 1, generator=generator))
    if not params.top_logprobs:
        return ChosenToken(token_id=token_id)
    logprobs = torch.log_softmax(logits, dim=-1)
    values, ids = logprobs.topk(min(params.top_logprobs, len(logprobs)))
    return ChosenToken(
        token_id=token_id,
        logprob=float(logprobs[token_id]),
        top=tuple(
            TokenLogprob(token_id=i, logprob=v)
            for i, v in zip(ids.tolist(), values.tolist(), strict=True)
        ),
    )


def _adjusted(
    logits: torch.Tensor,
    params: SamplingParams,
    prompt: TokenArray | Sequence[int],
    output: Sequence[int],
) -> torch.Tensor:
    """Apply penalties and biases. Returns the row itself if there are none."""
    counted = params.presence_penalty or params.frequency_penalty
    if not counted and params.repetition_penalty == 1.0 and not params.logit_bias:
        return logits
    adjusted = logits.clone()
    said, counts = np.unique(np.asarray(output, dtype=np.int64), return_counts=True)
    if params.repetition_penalty != 1.0:
        seen = torch.from_numpy(np.union1d(np.asarray(prompt, dtype=np.int64), said))
        values, factor = adjusted[seen], params.repetition_penalty
        adjusted[seen] = torch.where(values > 0, values / factor, values * factor)
    if counted:
        penalty = params.presence_penalty + params.frequency_penalty * counts
        adjusted[torch.from_numpy(said)] -= torch.from_numpy(penalty).to(adjusted.dtype)
    for token_id, bias in params.logit_bias:
        adjusted[token_id] += bias
    return adjusted


def _kept(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Probabilities after temperature, top-k, min-p and top-p. The likeliest token stays."""
    # Subtract the largest logit first. Otherwise a very small temperature makes the division
    # overflow.
    temperature = max(params.temperature, torch.finfo(torch.float32).tiny)
    scaled = (logits - logits.max()) / temperature
    if 0 < params.top_k < len(scaled):
        smallest = scaled.topk(params.top_k).values[-1]
        scaled = scaled.masked_fill(scaled < smallest, float("-inf"))
    probabilities = torch.softmax(scaled, dim=-1)
    if params.min_p > 0.0:
        floor = params.min_p * probabilities.max()
        probabilities = probabilities.masked_fill(probabilities < floor, 0.0)
    if params.top_p < 1.0:
        ordered, order = probabilities.sort(descending=True)
        # Drop a token if those before it already reach top_p.
        dropped = ordered.cumsum(0) - ordered >= params.top_p
        dropped[0] = False  # a top_p too small for float32 reads as 0
        probabilities = probabilities.index_fill(0, order[dropped], 0.0)
    return probabilities
