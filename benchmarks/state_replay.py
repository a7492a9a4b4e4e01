"""Can a layer with a running state reuse a span? A toy gated delta rule in float64.

    python -m benchmarks.state_replay

The state S, [values, keys], takes a token as S' = a S (I - b k k^T) + b v k^T, which is affine in
S. So a span's effect on any state follows from its k, v and gates, and no hidden state is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

HEADS, KEYS, VALUES = 4, 128, 128
SPAN = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What a layer computes of each token before its state is asked."""

    keys: torch.Tensor
    """[tokens, heads, keys], of length one."""
    values: torch.Tensor
    """[tokens, heads, values]"""
    decay: torch.Tensor
    """a: [tokens, heads]"""
    write: torch.Tensor
    """b: [tokens, heads]"""

    @classmethod
    def random(cls, count: int, *, decay: float, seed: int) -> Tokens:
        numbers = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=numbers, dtype=torch.float64)

        return cls(
            keys=torch.nn.functional.normalize(draw(count, HEADS, KEYS), dim=-1),
            values=draw(count, HEADS, VALUES),
            decay=torch.full((count, HEADS), decay, dtype=torch.float64),
            write=draw(count, HEADS).sigmoid(),
        )


def replayed(state: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    """The state after the tokens, one by one; states are [heads, values, keys]."""
    for k, v, a, b in zip(tokens.keys, tokens.values, tokens.decay, tokens.write, strict=True):
        held = torch.einsum("hvk,hk->hv", state, k)
        state = a[:, None, None] * (state - b[:, None, None] * held[:, :, None] * k[:, None])
        state = state + b[:, None, None] * v[:, :, None] * k[:, None]
    return state


def affine(tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
    """The span as one map: the state after it is `before @ turned + added`."""
    turned = torch.eye(KEYS, dtype=torch.float64).expand(HEADS, KEYS, KEYS)
    for k, a, b in zip(tokens.keys, tokens.decay, tokens.write, strict=True):
        through = torch.einsum("hij,hj->hi", turned, k)
        turned = a[:, None, None] * (turned - b[:, None, None] * through[:, :, None] * k[:, None])
    return turned, replayed(torch.zeros(HEADS, VALUES, KEYS, dtype=torch.float64), tokens)


def _error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


def main() -> None:
    """Print errors of the state after a span that a donor computed after another prefix."""
    print("decay    as one map    the donor's own state")
    empty = torch.zeros(HEADS, VALUES, KEYS, dtype=torch.float64)
    for decay in (1.0, 0.999, 0.99, 0.9):
        span = Tokens.random(SPAN, decay=decay, seed=1)
        donor = replayed(empty, Tokens.random(700, decay=decay, seed=2))
        before = replayed(empty, Tokens.random(900, decay=decay, seed=3))
        expected = replayed(before, span)
        turned, added = affine(span)
        by_map = _error(before @ turned + added, expected)
        print(f"{decay:<9}{by_map:<14.1e}{_error(replayed(donor, span), expected):.1e}")


if __name__ == "__main__":
    main()
