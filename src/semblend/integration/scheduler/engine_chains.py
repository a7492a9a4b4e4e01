"""Conversations over approximate K/V in an engine that names its cached blocks.

A request that reused K/V leaves blocks in the engine's prefix cache under private names, which no
other request can compute. A request that continues it token for token (`core/chain.py`) is given
those names before the engine looks for its prefix, and so finds the blocks: nothing is copied,
nothing is held, and the engine evicts them like any others. Behind the blocks it finds, its own
names are new and private again. So every block under a private name belongs to one chain, and only
the chain rule leads to it.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np

from semblend.core.chain import Link
from semblend.core.chain_table import ChainTable
from semblend.core.namespace import Namespace
from semblend.core.tokens import TokenArray
from semblend.integration.lora_adapter import LoraAdapter
from semblend.integration.scheduler.chain_rules import ChainRules
from semblend.integration.scheduler.port import Loan
from semblend.integration.scheduler.request import Continuation, Request
from semblend.pipeline import SemBlendPipeline

logger = logging.getLogger("semblend.adapter")

Name = bytes

_LATEST = 16
"""Chains kept since a waiting request was asked last that are looked at one by one."""


class ChainPort(Protocol):
    """The names of cached blocks, as an engine has them. Handles are the engine's requests."""

    @property
    def total_blocks(self) -> int:
        """Blocks of the engine's cache."""
        ...

    def public_names(self, handle: Any) -> Sequence[Name]:
        """What the exact prefix cache calls the whole blocks of a request's prompt."""
        ...

    def public_name(self, handle: Any, number: int) -> Name | None:
        """One of these names; None if there is none of this number."""
        ...

    def names(self, handle: Any) -> Sequence[Name]:
        """What a request's whole blocks are called now, answer included."""
        ...

    def cached(self, names: Sequence[Name]) -> int:
        """How many of these, from the first on, name a block in the cache."""
        ...

    def take_over(self, handle: Any, first: int, names: Sequence[Name]) -> None:
        """Call the blocks from `first` on by these names, and all behind them by new, private ones.

        Nothing may be allocated to the request yet.
        """
        ...

    def give_up(self, handle: Any) -> None:
        """Restore the public names; does nothing if they are in place."""
        ...

    def public_blocks(self, handle: Any, tokens: TokenArray) -> PublicBlocks:
        """The exact prefix cache's blocks of a request's tokens, answer included."""
        ...


class PublicBlocks(Protocol):
    """Blocks of certain tokens in the engine's exact prefix cache."""

    @property
    def names(self) -> Sequence[Name]:
        """What they are called."""
        ...

    def hold(self, most: int) -> Loan:
        """Those that are cached, from the first on, `most` at most; they stay until returned."""
        ...

    def publish(self, blocks: Sequence[Any], first: int, end: int) -> None:
        """Blocks [first, end) hold exact K/V now: let every request find them."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class KeptChain:
    """A finished request and the names of its blocks."""

    link: Link
    prompt_key: Name
    handle: Any
    namespace: Namespace
    adapter: LoraAdapter | None
    request_id: str
    prompt_names: int
    """How many names of its prompt's whole blocks there are; `prompt_key` is the last of them."""
    names: tuple[Name, ...]
    """Public up to the first block with an approximate token, then private."""
    units: tuple[Name, ...]
    """The private ones."""
    promoted_tokens: int = 0
    """Tokens computed exactly for it so far, including any lost again."""

    @property
    def tokens(self) -> TokenArray:
        """Tokens whose K/V was computed."""
        return self.link.tokens[: self.link.computed_tokens]


class EngineChains:
    """Keeps chains and lets requests continue them. Called on the scheduler's thread."""

    def __init__(
        self,
        *,
        port: ChainPort,
        pipeline: SemBlendPipeline,
        block_size: int,
        max_turns: int,
        objection: Callable[[Request[Any]], str | None],
    ) -> None:
        """Start with none.

        Parameters
        ----------
        objection
            Says why nothing approximate may be used for a request, if so.
        """
        self._port = port
        self._rules = ChainRules(pipeline=pipeline, objection=objection)
        self._size = block_size
        self._max_turns = max_turns
        self._made: ChainTable[KeptChain] | None = None
        self._lengths: Counter[int] = Counter()
        """`prompt_names` of all chains."""
        self._kept = 0
        """Chains kept so far."""
        self._latest: deque[tuple[int, Name]] = deque(maxlen=_LATEST)
        """`prompt_names` and `prompt_key` of those kept last."""

    def __len__(self) -> int:
        return 0 if self._made is None else len(self._made)

    @property
    def blocks(self) -> int:
        """Names of blocks held; some of the blocks may have been evicted."""
        return 0 if self._made is None else self._made.units

    @property
    def _table(self) -> ChainTable[KeptChain]:
        # An engine makes its cache after its connector.
        if self._made is None:
            self._made = ChainTable(
                block_size=self._size,
                max_units=self._port.total_blocks,  # no more can be cached
                max_turns=self._max_turns,
                dropped=self._dropped,
            )
        return self._made

    def _dropped(self, chain: KeptChain) -> None:
        self._lengths[chain.prompt_names] -= 1
        if not self._lengths[chain.prompt_names]:
            del self._lengths[chain.prompt_names]

    def before_lookup(self, request: Request[Any]) -> None:
        """The engine is about to look for a request's prefix. Never raises."""
        if request.started:
            return  # preempted: its blocks keep their names
        try:
            self._leave(request)
            if len(self) and self._may_begin_with(request) and self._rules.may_follow(request):
                self._follow(request)
        except Exception:
            logger.warning("SemBlend could not look up a chain; computed", exc_info=True)
            self._leave(request)

    def _may_begin_with(self, request: Request[Any]) -> bool:
        """False if no kept prompt is the beginning of this one; it is asked at every step."""
        if request.chains_seen is None:
            return True
        new = self._kept - request.chains_seen
        if new > len(self._latest) or any(
            not length or self._port.public_name(request.handle, length - 1) == key
            for length, key in islice(reversed(self._latest), new)
        ):
            request.chains_seen = None
            return True
        request.chains_seen = self._kept
        return False

    def _leave(self, request: Request[Any]) -> None:
        if request.continuation is not None:
            self._port.give_up(request.handle)
            request.follow(None)

    def _follow(self, request: Request[Any]) -> None:
        public = self._port.public_names(request.handle)
        follower = self._rules.follower(request, request.tokens)
        # Names stand for all tokens before them, so only those where a kept prompt ends matter.
        ends = sorted(length for length in self._lengths if length <= len(public))
        names = (public[end - 1] if end else follower.share_key for end in ends)
        keys = [name for name in names if self._table.knows(name)]
        if not keys:
            request.chains_seen = self._kept
            return
        found = self._table.find(follower, keys)
        if found is None:
            return
        chain, tokens = found
        held = self._port.cached(chain.names[: tokens // self._size])
        exact = self._port.cached(public[:held])
        if held <= exact:
            return  # evicted, or somebody has computed it exactly since
        first = max(exact, chain.link.exact_tokens // self._size)
        # From here on it is private, whatever fails.
        request.follow(
            Continuation(
                exact_tokens=max(
                    exact * self._size, min(held * self._size, chain.link.exact_tokens)
                ),
                turns=chain.link.turns,
            )
        )
        self._port.take_over(request.handle, first, chain.names[first:held])

    def keep(self, request: Request[Any]) -> bool:
        """A request ends. Returns whether it can now be continued."""
        outputs = request.handle.output_tokens
        if not request.is_approximate or not outputs or not self._rules.may_keep(request):
            return False
        tokens = np.concatenate((request.tokens, np.asarray(outputs, dtype=np.int32)))
        computed = len(tokens) - 1
        names = tuple(self._port.names(request.handle)[: computed // self._size])
        private = names[request.exact_until // self._size :]
        if not self._table.takes(len(private)):
            return False
        link = self._rules.link(
            request, tokens, computed_tokens=computed, exact_tokens=request.exact_until
        )
        public = self._port.public_names(request.handle)
        prompt_key = public[-1] if public else link.share_key
        self._lengths[len(public)] += 1
        self._latest.append((len(public), prompt_key))
        self._kept += 1
        self._table.add(
            KeptChain(
                link=link,
                handle=request.handle,
                namespace=request.namespace,
                adapter=request.arrival.adapter,
                request_id=request.request_id,
                prompt_key=prompt_key,
                prompt_names=len(public),
                names=names,
                units=private,
            )
        )
        return True

    def used_again(self) -> tuple[KeptChain, ...]:
        """Chains of conversations that went on, the longest unused first."""
        return () if self._made is None else self._made.used_again()

    def public_blocks(self, chain: KeptChain, tokens: TokenArray) -> PublicBlocks:
        """The exact prefix cache's blocks of a chain's tokens."""
        return self._port.public_blocks(chain.handle, tokens)

    def publish(self, handle: Any, tokens: TokenArray, blocks: Sequence[Any]) -> None:
        """These blocks hold exact K/V of a request's tokens: let every request find them."""
        public = self._port.public_blocks(handle, tokens)
        public.publish(blocks, self._port.cached(public.names), len(public.names))

    def became_exact(self, chain: KeptChain) -> None:
        """Forget a chain, and all that hold nothing beyond it: its exact K/V is available."""
        self._table.became_exact(chain.link.share_key, chain.tokens)

    def clear(self) -> None:
        """Forget all chains."""
        if self._made is not None:
            self._made.clear()
