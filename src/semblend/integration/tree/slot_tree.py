"""What an engine with a prefix tree offers: single actions, never decisions.

A tree holds K/V by tokens and keys, in slots of a pool, and evicts what nobody has locked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from semblend.core.tokens import TokenArray


class TreePath(Protocol):
    """What a tree holds of some tokens, from their first on."""

    @property
    def tokens(self) -> int:
        """How many of them."""
        ...

    def lock(self) -> Callable[[], None]:
        """Keep it where it is, until what is returned is called."""
        ...

    def slots(self) -> torch.Tensor:
        """Where it is, int64 [tokens]."""
        ...


class SlotTree(Protocol):
    """A tree and its pool."""

    page_size: int
    slot_count: int

    def find(
        self, tokens: TokenArray, *, extra_key: str | None, cache_salt: str | None = None
    ) -> TreePath:
        """What the tree holds of these tokens under these keys."""
        ...

    def take(self, count: int) -> torch.Tensor | None:
        """Free slots, whole pages of them, int64 [count]; the tree makes room. None: no room."""
        ...

    def give_back(self, slots: torch.Tensor) -> None:
        """Free slots that no request uses."""
        ...


class EndedRow(Protocol):
    """A request that has ended with an answer, and whose slots are about to be freed."""

    start: int
    """Tokens before this one are the tree's."""

    @property
    def computed_tokens(self) -> int:
        """Tokens whose K/V the row holds."""
        ...

    @property
    def tokens(self) -> TokenArray:
        """Its prompt and its answer, int32."""
        ...

    def hand_over(self, end: int, *, extra_key: str) -> None:
        """Let the tree have the slots of [start, end) under a key.

        From then on the row must not free them. That is said first: should the tree fail, slots
        are lost rather than given away twice.
        """
        ...
