"""Conversations over approximate K/V, kept in an engine's tree under keys that nobody can ask for.

A request that reused K/V is barred from the tree. When it ends, what it owns of its K/V (all behind
the tree's exact prefix) is inserted nevertheless, under a random key, by which the engine keeps
namespaces apart: no request can name it, so none matches it. The tree counts these slots and evicts
them like any others. A request that continues the conversation token for token (`core/chain.py`)
gets a copy in slots of its own, and what it adds is inserted behind it when it ends.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from semblend.core.chain import Link
from semblend.core.chain_table import ChainTable, PromptNames
from semblend.core.tokens import TokenArray
from semblend.integration.scheduler.chain_rules import ChainRules
from semblend.integration.scheduler.request import Continuation
from semblend.integration.tree.admitted import State
from semblend.integration.tree.slot_tree import EndedRow, SlotTree, TreePath

_UNIT = 64
"""Tokens that are counted together; the table names no more of them than the pool has room for."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TreeChain:
    """A finished request whose K/V from `start` on is in the tree under a key of its own."""

    link: Link
    prompt_key: bytes
    private_key: str
    start: int
    """Tokens before this one are under the request's public key, if anywhere."""
    units: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Following:
    """What a request takes from a chain: tokens [start, end), behind its exact prefix."""

    chain: TreeChain
    start: int
    end: int

    @property
    def continuation(self) -> Continuation:
        """The same as shared code has it."""
        return Continuation(exact_tokens=self.start, turns=self.chain.link.turns)


class TreeChains:
    """Keeps chains in one tree, and finds what a request continues."""

    def __init__(self, tree: SlotTree, rules: ChainRules, *, max_turns: int) -> None:
        self._tree = tree
        self._rules = rules
        self._page = tree.page_size
        self._names = PromptNames()
        self._table: ChainTable[TreeChain] = ChainTable(
            block_size=self._page,
            max_units=max(1, tree.slot_count // _UNIT),
            max_turns=max_turns,
            dropped=lambda chain: self._names.drop(chain.link),
        )

    def __len__(self) -> int:
        return len(self._table)

    def find(
        self, state: State, tokens: TokenArray, exact_tokens: int, *, most: int
    ) -> Following | None:
        """What a prompt continues beyond its exact prefix, as far as the tree still has it.

        `most` tokens of it may be present.
        """
        if not len(self) or not self._rules.may_follow(state):
            return None
        follower = self._rules.follower(state, tokens)
        found = self._table.find(follower, self._names.keys(follower))
        if found is None:
            return None
        chain, end = found
        end = min(end, most // self._page * self._page)
        if not chain.start <= exact_tokens < end:
            return None  # its front was evicted, or is exact by now
        end = chain.start + self._path(chain, tokens[:end]).tokens
        if end <= exact_tokens:
            return None
        return Following(chain=chain, start=exact_tokens, end=end)

    def slots(
        self, following: Following, tokens: TokenArray, locks: ExitStack
    ) -> torch.Tensor | None:
        """Where the K/V it takes is, int64 [end - start], and a lock on it; None if it is gone."""
        chain = following.chain
        path = self._path(chain, tokens[: following.end])
        if chain.start + path.tokens < following.end:
            return None
        locks.callback(path.lock())
        return path.slots()[following.start - chain.start : following.end - chain.start]

    def keep(self, state: State, row: EndedRow) -> None:
        """A request has ended: let the tree have what is its own before its row is freed."""
        load, following, start = state.handle.load, state.handle.following, row.start
        if (
            load is None
            or load.plan.exact_tokens != start
            or not state.is_approximate
            or not self._rules.may_keep(state)
        ):
            return
        tokens = row.tokens
        computed = min(row.computed_tokens, len(tokens) - 1)
        end = start + (computed - start) // self._page * self._page
        if end <= start:
            return
        private_key = self._key_for(following, tokens[:end], start)
        link = self._rules.link(state, tokens, computed_tokens=end, exact_tokens=start)
        chain = TreeChain(
            link=link,
            prompt_key=self._names.key(link),
            private_key=private_key,
            start=start,
            units=tuple((private_key, unit) for unit in range(-(-(end - start) // _UNIT))),
        )
        row.hand_over(end, extra_key=private_key)
        self._names.add(link)
        self._table.add(chain)

    def _key_for(self, following: Following | None, tokens: TokenArray, start: int) -> str:
        """The key of the conversation it went on from, if it adds to that and repeats nothing.

        What the tree has of these tokens beyond what was taken over was computed by somebody else.
        """
        if following is not None and following.chain.start == start:
            held = start + self._path(following.chain, tokens).tokens
            if held <= following.end:
                return following.chain.private_key
        return f"semblend-{secrets.token_hex(16)}"

    def clear(self) -> None:
        """The tree was emptied."""
        self._table.clear()

    def _path(self, chain: TreeChain, tokens: TokenArray) -> TreePath:
        return self._tree.find(tokens[chain.start :], extra_key=chain.private_key)
