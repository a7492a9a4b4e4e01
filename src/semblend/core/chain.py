"""Chains: requests that continue one another token for token, and what they may take over.

The one rule, for every engine:

- *Who continues.* A prompt that begins with the whole prompt of an earlier request and with at
  least the first token of its answer, under the same share key (every part of the namespace:
  model, tenant, template, salt) and the same recompute policy. A prompt that is merely repeated,
  or shares a beginning, is another request.
- *What it takes.* K/V of the tokens both have, whole blocks, no further than they agree: an answer
  may come back trimmed (a stop string, a stream that was cut, a last word tokenised anew).
- *What is private.* All of it from the first approximate token on. It is no exact prefix, no donor,
  and no other request's.
- *What is exact.* What the plan says (:attr:`Plan.first_approximate_token`): nothing from the first
  approximate token of the chain on.
- *How far.* As many requests as were measured; the next one is computed anew.

Two users of one namespace who send the same conversation, answer included, may go on from the same
K/V. A namespace is who shares K/V at all; what they get is what that conversation was generated
with; and a prompt alone, which one of them could guess or have in common, is not enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from semblend.core.tokens import TokenArray

MEASURED_TURNS = 10
"""Requests of a chain that the measurements of this repository cover (docs/quality.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One request that has ended and can be continued."""

    share_key: bytes
    tokens: TokenArray
    """Prompt and answer; the answer's last token has no K/V."""
    prompt_tokens: int
    computed_tokens: int
    """Tokens at the front whose K/V is held."""
    exact_tokens: int
    """Tokens at the front whose K/V is exact."""
    turns: int
    """Requests since the first approximate token of the chain, this one included."""
    policy: str | None = None
    """The recompute policy that the request itself asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """A request that may continue a link."""

    share_key: bytes
    tokens: TokenArray
    policy: str | None = None


LinkLike = TypeVar("LinkLike", bound="HasLink")


class HasLink(Protocol):
    """What an engine keeps of a request that has ended."""

    @property
    def link(self) -> Link:
        """What the rule asks of it."""
        ...


def furthest(
    kept: Iterable[LinkLike], follower: Follower, *, block_size: int, max_turns: int
) -> tuple[LinkLike, int] | None:
    """Which of what was kept a request continues, and how many tokens of it; None for nothing.

    Where the furthest is as long as was measured, none is: an earlier part of the same
    conversation would only hide how long it has grown.
    """
    best: tuple[LinkLike, int] | None = None
    for one in kept:
        held = continued_tokens(one.link, follower, block_size=block_size)
        if held and (best is None or held >= best[1]):
            best = one, held
    return None if best is None or best[0].link.turns >= max_turns else best


def continued_tokens(link: Link, follower: Follower, *, block_size: int) -> int:
    """Tokens at the front of a request that a link holds K/V of, if the request continues it.

    At least one token of the prompt stays to be computed, because its logits are wanted.
    """
    if link.share_key != follower.share_key or link.policy != follower.policy:
        return 0
    common = common_prefix(link.tokens, follower.tokens)
    if common <= link.prompt_tokens:
        return 0
    held = min(common, link.computed_tokens, len(follower.tokens) - 1)
    return held // block_size * block_size


def common_prefix(first: TokenArray, second: TokenArray) -> int:
    """How many tokens two prompts have in common at their front."""
    size = min(len(first), len(second))
    differs = np.flatnonzero(first[:size] != second[:size])
    return int(differs[0]) if differs.size else size
