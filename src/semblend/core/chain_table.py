"""Which finished requests can be continued: a bounded table, in every engine the same.

An engine keeps what it needs to find a request's K/V again (pages, names of blocks) beside the
request's :class:`~semblend.core.chain.Link`. The table finds the one a new request continues,
and forgets the one that was unused longest when it is full.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

import numpy as np

from semblend.core.chain import Follower, Link, furthest
from semblend.core.tokens import TokenArray


class Kept(Protocol):
    """What an engine keeps of one finished request."""

    @property
    def link(self) -> Link:
        """The link that the chain rule checks."""
        ...

    @property
    def prompt_key(self) -> bytes:
        """What it is looked up by: a name of its prompt that every follower's prompt has too."""
        ...

    @property
    def units(self) -> Collection[Hashable]:
        """The pages or blocks that hold its K/V. Chains may share them."""
        ...


KeptRequest = TypeVar("KeptRequest", bound=Kept)


class PromptNames:
    """What kept prompts are looked up by where an engine has no names for their blocks."""

    def __init__(self) -> None:
        self._lengths: Counter[int] = Counter()

    def add(self, link: Link) -> None:
        """A request is kept."""
        self._lengths[link.prompt_tokens] += 1

    def drop(self, link: Link) -> None:
        """A request is no longer kept."""
        self._lengths[link.prompt_tokens] -= 1
        self._lengths += Counter()  # drops what is not positive

    def key(self, link: Link) -> bytes:
        """The name of a kept request's prompt."""
        (key,) = _beginnings(link.share_key, link.tokens, [link.prompt_tokens])
        return key

    def keys(self, follower: Follower) -> Iterator[bytes]:
        """The names of a prompt's beginnings that are as long as a kept prompt."""
        shorter = (length for length in self._lengths if length < len(follower.tokens))
        return _beginnings(follower.share_key, follower.tokens, sorted(shorter))


def _beginnings(share_key: bytes, tokens: TokenArray, lengths: Iterable[int]) -> Iterator[bytes]:
    name, named = hashlib.blake2b(share_key, digest_size=16), 0
    for length in lengths:
        name.update(np.ascontiguousarray(tokens[named:length]).tobytes())
        named = length
        yield name.copy().digest()


class ChainTable(Generic[KeptRequest]):
    """Kept requests that hold at most `max_units` different units, the longest unused first.

    `dropped` is called with each one that leaves.
    """

    def __init__(
        self,
        *,
        block_size: int,
        max_units: int,
        max_turns: int,
        dropped: Callable[[KeptRequest], None] = lambda _: None,
    ) -> None:
        self._block_size = block_size
        self._max_units = max_units
        self._max_turns = max_turns
        self._dropped = dropped
        self._kept: OrderedDict[int, KeptRequest] = OrderedDict()
        self._by_prompt: dict[bytes, list[KeptRequest]] = {}
        self._held: Counter[Hashable] = Counter()
        """Number of kept requests that hold each unit."""

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[KeptRequest]:
        return iter(tuple(self._kept.values()))

    @property
    def units(self) -> int:
        """Number of different units held."""
        return len(self._held)

    def holders(self, unit: Hashable) -> int:
        """How many kept requests hold a unit."""
        return self._held[unit]

    def takes(self, units: int) -> bool:
        """Whether a request with this many units can be kept at all."""
        return 0 < units <= self._max_units

    def add(self, kept: KeptRequest) -> None:
        """Keep a request. It replaces one with the same tokens."""
        link = kept.link
        for twin in tuple(self._by_prompt.get(kept.prompt_key, ())):
            if twin.link.share_key == link.share_key and np.array_equal(
                twin.link.tokens, link.tokens
            ):
                self.drop(twin)
        self._held.update(kept.units)
        self._kept[id(kept)] = kept
        self._by_prompt.setdefault(kept.prompt_key, []).append(kept)
        # A request may share all its units with others, so their number is limited too.
        while self.units > self._max_units or len(self) > self._max_units:
            self.drop(next(iter(self._kept.values())))

    def knows(self, key: bytes) -> bool:
        """Whether a kept request has this name of its prompt."""
        return key in self._by_prompt

    def find(self, follower: Follower, keys: Iterable[bytes]) -> tuple[KeptRequest, int] | None:
        """The request that this one continues furthest, and by how many tokens.

        `keys` are the names of the follower's prompt and of its beginnings.
        """
        kept = (one for key in keys for one in self._by_prompt.get(key, ()))
        found = furthest(kept, follower, block_size=self._block_size, max_turns=self._max_turns)
        if found is not None:
            self._kept.move_to_end(id(found[0]))  # others may fork from it, too
        return found

    def used_again(self) -> tuple[KeptRequest, ...]:
        """Requests of conversations that went on, the longest unused first."""
        return tuple(one for one in self._kept.values() if one.link.turns > 1)

    def became_exact(self, share_key: bytes, tokens: TokenArray) -> None:
        """Drop requests that hold nothing beyond `tokens`, whose exact K/V is now available."""
        for one in self:
            mine = one.link.tokens[: one.link.computed_tokens]
            if one.link.share_key == share_key and np.array_equal(mine, tokens[: len(mine)]):
                self.drop(one)

    def drop(self, kept: KeptRequest) -> None:
        """Forget one request; does nothing if it is already gone."""
        if self._kept.pop(id(kept), None) is None:
            return
        left = [other for other in self._by_prompt[kept.prompt_key] if other is not kept]
        if left:
            self._by_prompt[kept.prompt_key] = left
        else:
            del self._by_prompt[kept.prompt_key]
        for unit in kept.units:
            self._held[unit] -= 1
            if not self._held[unit]:
                del self._held[unit]
        self._dropped(kept)

    def clear(self) -> int:
        """Forget all and return how many there were."""
        count = len(self)
        for one in self:
            self.drop(one)
        return count
