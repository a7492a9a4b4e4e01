"""Engines with a prefix tree: a load holds nothing but its slots, a conversation nobody's but its.

The tree is a table of tokens by keys, so this needs no engine.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from semblend.core.account import Accounts
from semblend.core.errors import CapacityError
from semblend.core.ledger import Ledger
from semblend.core.namespace import Namespace
from semblend.core.plan import Plan, Span, SpanKind
from semblend.integration.provider import DonorRecord, DonorsLostError
from semblend.integration.scheduler.chain_rules import ChainRules
from semblend.integration.scheduler.request import Arrival, Request
from semblend.integration.tree.admitted import PrivateLoad, Row
from semblend.integration.tree.tree_chains import TreeChains
from semblend.integration.tree.tree_loader import TreeLoader
from semblend.integration.worker.host_ranks import MeetingRanks
from tests.integration.models import joined, random_tokens

PAGE, SLOTS = 4, 64
DONOR = random_tokens(24, seed=1)
PROMPT = joined(random_tokens(4, seed=2), DONOR[:20], random_tokens(6, seed=3))
ANSWER = random_tokens(10, seed=4)
PLAN = Plan(
    namespace="n",
    prompt_tokens=len(PROMPT),
    spans=(Span(donor_id="d", donor_start=4, target_start=8, length=16, kind=SpanKind.MOVED),),
    end=24,
    exact_tokens=0,
)
PIPELINE: Any = SimpleNamespace(
    share_key=lambda namespace: str(namespace.cache_salt).encode(), objection=lambda policy: None
)


@dataclass
class Path:
    tree: Tree
    key: Any
    tokens: int

    def lock(self):
        self.tree.locks[self.key] += 1
        return lambda: self.tree.locks.subtract([self.key])

    def slots(self):
        return torch.from_numpy(self.tree.held[self.key][1][: self.tokens].astype(np.int64))


@dataclass
class Tree:
    page_size: int = PAGE
    slot_count: int = SLOTS
    held: dict = field(default_factory=dict)
    locks: Counter = field(default_factory=Counter)
    free: list = field(default_factory=lambda: list(range(SLOTS)))

    def find(self, tokens, *, extra_key, cache_salt=None):
        key = extra_key, cache_salt
        there = self.held.get(key, (np.empty(0, dtype=np.int32), None))[0]
        size = min(len(there), len(tokens))
        same = int(np.argmin(np.append(there[:size] == tokens[:size], False)))
        return Path(self, key, same // PAGE * PAGE)

    def keep(self, tokens, slots, *, extra_key, cache_salt=None):
        self.held[extra_key, cache_salt] = np.asarray(tokens), np.asarray(slots)

    def take(self, count):
        if count > len(self.free):
            return None
        taken, self.free = self.free[:count], self.free[count:]
        return torch.tensor(taken)

    def give_back(self, slots):
        self.free += slots.tolist()


def loader(tree, place):
    donor = DonorRecord(donor_id="d", tokens=DONOR, extra_key="k", cache_salt=None)
    provider: Any = SimpleNamespace(donor={"d": donor}.get)
    copies: Any = SimpleNamespace(place=place)
    return TreeLoader(tree, copies, provider, MeetingRanks(), None)


@pytest.fixture
def tree():
    made = Tree()
    made.keep(DONOR, made.take(len(DONOR)), extra_key="k")
    return made


def test_donors_are_locked_while_slots_are_taken_and_copied_and_no_longer(tree):
    seen = []

    def place(plan, tokens, donors, slots, *, continued):
        seen.append((dict(tree.locks), donors["d"].slots.tolist(), len(slots)))

    load = loader(tree, place).load(PLAN, PROMPT)
    assert seen == [({("k", None): 1}, list(range(20)), 24)]
    assert not any(tree.locks.values())
    assert len(tree.free) == SLOTS - len(DONOR) - len(load.slots), "it holds its own slots alone"


def test_a_copy_that_fails_leaves_no_slot_and_no_lock(tree):
    before = sorted(tree.free)

    def place(*_, **__):
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        loader(tree, place).load(PLAN, PROMPT)
    assert sorted(tree.free) == before
    assert not any(tree.locks.values())


def test_a_donor_that_the_tree_has_dropped_is_named_and_nothing_is_taken(tree):
    tree.held.clear()
    before = list(tree.free)
    with pytest.raises(DonorsLostError) as lost:
        loader(tree, None).load(PLAN, PROMPT)
    assert lost.value.donor_ids == ("d",)
    assert tree.free == before


def test_a_full_pool_is_said_and_the_locks_go(tree):
    tree.take(len(tree.free) - 8)
    with pytest.raises(CapacityError):
        loader(tree, None).load(PLAN, PROMPT)
    assert not any(tree.locks.values())


# -- conversations -----------------------------------------------------------------------


def state(*, salt="one", tokens=PROMPT, **options):
    arrival = Arrival(
        request_id="r",
        handle=Row(tokens=tokens),
        tokens=tokens,
        namespace=Namespace.of(model="m", cache_salt=salt),
        **options,
    )
    return Request(arrival, Accounts(ledger=Ledger()).open("r", prompt_tokens=len(tokens)))


@dataclass
class Ended:
    tree: Tree
    tokens: Any
    start: int = 0
    handed: list = field(default_factory=list)

    @property
    def computed_tokens(self):
        return len(self.tokens) - 1

    def hand_over(self, end, *, extra_key):
        self.handed.append(extra_key)
        self.tree.keep(self.tokens[self.start : end], range(end), extra_key=extra_key)


def ended(chains, tree, request, tokens):
    request.tainted = request.was_loaded = True
    request.handle.load = PrivateLoad(plan=PLAN, slots=torch.arange(PLAN.end))
    row = Ended(tree, tokens)
    chains.keep(request, row)
    return row.handed


def follower(**options):
    told = joined(PROMPT, ANSWER, random_tokens(9, seed=5))
    return state(tokens=told, **options), told


def test_a_conversation_is_kept_under_a_key_that_only_its_continuation_is_led_to(tree):
    chains = TreeChains(tree, ChainRules(pipeline=PIPELINE), max_turns=4)
    (key,) = ended(chains, tree, state(), joined(PROMPT, ANSWER))
    assert key.startswith("semblend-")
    request, told = follower()
    found = chains.find(request, told, 0, most=len(told))
    assert (found.start, found.end) == (0, (len(PROMPT) + len(ANSWER) - 1) // PAGE * PAGE)
    other, _ = follower(salt="another")
    assert chains.find(other, told, 0, most=len(told)) is None
    unlike = told.copy()
    unlike[len(PROMPT)] += 1  # it answers something else
    assert chains.find(state(tokens=unlike), unlike, 0, most=len(told)) is None
    tree.held.pop((key, None))
    assert chains.find(request, told, 0, most=len(told)) is None, "evicted"


def test_what_is_added_to_a_conversation_goes_under_its_key(tree):
    chains = TreeChains(tree, ChainRules(pipeline=PIPELINE), max_turns=4)
    (key,) = ended(chains, tree, state(), joined(PROMPT, ANSWER))
    request, told = follower()
    request.handle.following = chains.find(request, told, 0, most=len(told))
    request.continuation = request.handle.following.continuation
    assert ended(chains, tree, request, joined(told, ANSWER)) == [key]
    assert ended(chains, tree, state(), joined(PROMPT, ANSWER)) != [key], "somebody else's"


@pytest.mark.parametrize("said", [{"wants_capture": False}, {"refusal": "lora"}])
def test_nothing_is_kept_of_a_request_that_may_not_be_continued(tree, said):
    chains = TreeChains(tree, ChainRules(pipeline=PIPELINE), max_turns=4)
    assert ended(chains, tree, state(**said), joined(PROMPT, ANSWER)) == []
    exact = state()
    chains.keep(exact, Ended(tree, joined(PROMPT, ANSWER)))
    assert not len(chains), "what was computed exactly is in the tree already"
