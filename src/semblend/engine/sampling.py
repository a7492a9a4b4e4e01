"""Choosing the next token from logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from semblend.engine.api import SamplingParams, TokenLogprob


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A chosen token with the model's own log-probability (before temperature and cuts)."""

    token_id: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


def make_generator(params: SamplingParams) -> torch.Generator | None:
    """A generator of the request's own, so that what runs beside it cannot change its draw."""
    if params.temperature == 0.0:
        return None
    generator = torch.Generator()
    if params.seed is None:
        generator.seed()
    else:
        generator.manual_seed(params.seed)
    return generator


def choose(
    logits: torch.Tensor, params: SamplingParams, generator: torch.Generator | None
) -> Choice:
    """Pick a token from one row of float32 logits, [vocabulary], on the host."""
    if generator is None:
        token_id = int(logits.argmax())
    else:
        token_id = int(torch.multinomial(_kept(logits, params), 1, generator=generator))
    if not params.top_logprobs:
        return Choice(token_id=token_id)
    logprobs = torch.log_softmax(logits, dim=-1)
    values, ids = logprobs.topk(min(params.top_logprobs, len(logprobs)))
    return Choice(
        token_id=token_id,
        logprob=float(logprobs[token_id]),
        top=tuple(
            TokenLogprob(token_id=i, logprob=v)
            for i, v in zip(ids.tolist(), values.tolist(), strict=True)
        ),
    )


def _kept(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Probabilities after temperature, top-k and top-p; the likeliest token always stays."""
    # From the likeliest token down, which is then exactly 0 at any temperature: divided as they
    # are, logits overflow at a very small one.
    temperature = max(params.temperature, torch.finfo(torch.float32).tiny)
    scaled = (logits - logits.max()) / temperature
    if 0 < params.top_k < len(scaled):
        smallest = scaled.topk(params.top_k).values[-1]
        scaled = scaled.masked_fill(scaled < smallest, float("-inf"))
    probabilities = torch.softmax(scaled, dim=-1)
    if params.top_p < 1.0:
        ordered, order = probabilities.sort(descending=True)
        # A token is dropped when those before it already reach top_p.
        dropped = ordered.cumsum(0) - ordered >= params.top_p
        dropped[0] = False  # a top_p too small for float32 reads as 0
        probabilities = probabilities.index_fill(0, order[dropped], 0.0)
    return probabilities
