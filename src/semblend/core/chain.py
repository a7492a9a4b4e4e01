"""Chains: requests that continue one another token for token, and the K/V they may take over.

All engines follow one rule:

- *Who continues.* A prompt that starts with an earlier request's complete prompt and at least the
  first token of its answer, under the same share key (every part of the namespace: model, tenant,
  template, salt) and the same recompute policy. A prompt that is only repeated, or only shares a
  beginning, is a separate request.
- *What it takes.* K/V of the tokens both have, in whole blocks, as far as they agree. An answer
  may come back trimmed: a stop string, a cut stream, a last word tokenised differently.
- *What is private.* Everything from the first approximate token on. It is never an exact prefix,
  never a donor, and never used by a request outside the chain.
- *What is exact.* What the plan says (:attr:`Plan.first_approximate_token`): nothing from the
  chain's first approximate token on.
- *How far.* As many requests as were measured. The next one is computed from scratch.

Two users in one namespace who send the same conversation, including the answer, may continue from
the same K/V. The namespace decides who may share K/V at all. Both get the K/V that the conversation
was generated with, and a prompt alone, which a user could guess, is not enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from semblend.core.tokens import TokenArray

MEASURED_TURNS = 10
"""Longest chain that this repository's measurements cover (docs/quality.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A finished request that can be continued."""

    share_key: bytes
    tokens: TokenArray
    """Prompt and answer. The answer's last token has no K/V."""
    prompt_tokens: int
    computed_tokens: int
    """Leading tokens whose K/V is held."""
    exact_tokens: int
    """Leading tokens whose K/V is exact."""
    turns: int
    """Requests since the chain's first approximate token, including this one."""
    policy: str | None = None
    """The recompute policy that the request asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """A request that may continue a link."""

    share_key: bytes
    tokens: TokenArray
    policy: str | None = None


LinkLike = TypeVar("LinkLike", bound="HasLink")


class HasLink(Protocol):
    """What an engine keeps of a finished request."""

    @property
    def link(self) -> Link:
        """The link that the chain rule checks."""
        ...


def furthest(
    kept: Iterable[LinkLike], follower: Follower, *, block_size: int, max_turns: int
) -> tuple[LinkLike, int] | None:
    """Find the kept request that this one continues furthest, and how many of its tokens; or None.

    If that chain is already as long as was measured, return None. An earlier link of the same
    conversation would only hide its length.
    """
    best: tuple[LinkLike, int] | None = None
    for one in kept:
        held = continued_tokens(one.link, follower, block_size=block_size)
        if held and (best is None or held >= best[1]):
            best = one, held
    return None if best is None or best[0].link.turns >= max_turns else best


def continued_tokens(link: Link, follower: Follower, *, block_size: int) -> int:
    """Leading tokens of a request for which the link holds K/V, if the request continues it.

    At least one prompt token is left to compute, because its logits are needed.
    """
    if link.share_key != follower.share_key or link.policy != follower.policy:
        return 0
    common = common_prefix(link.tokens, follower.tokens)
    if common <= link.prompt_tokens:
        return 0
    held = min(common, link.computed_tokens, len(follower.tokens) - 1)
    return held // block_size * block_size


def common_prefix(first: TokenArray, second: TokenArray) -> int:
    """Number of leading tokens two prompts share."""
    size = min(len(first), len(second))
    differs = np.flatnonzero(first[:size] != second[:size])
    return int(differs[0]) if differs.size else size
