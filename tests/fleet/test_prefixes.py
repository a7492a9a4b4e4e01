"""A rank is said to hold exactly the prefix that its engine's cache holds."""

import hashlib
from types import SimpleNamespace

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend.core.private_hashes import is_private, private_hashes
from semblend.fleet.directory.answers import Found, WorkerHolding
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.placement.chooser import Choice, WorkerLoad, choose
from semblend.fleet.placement.expected_time import FleetCost
from semblend.fleet.residency.caches import FollowedCaches
from semblend.fleet.residency.decoding import (
    BlocksStored,
    CacheBatch,
    StoredTokens,
    keys_text,
)
from semblend.fleet.residency.prefixes import PrefixResidency
from semblend.integration.dynamo.pinning import PIN_HEADER
from semblend.serve.gateway.app import create_gateway
from semblend.serve.gateway.options import GatewayOptions
from tests.fleet.engines import MODEL, SLOW_PREFILL
from tests.fleet.engines import settings as gateway_settings
from tests.fleet.support import SECRET, prompt

SIZE = 4


def batch(*events):
    return CacheBatch(events=events, dp_rank=0)


class Cache:
    """An engine's prefix cache: blocks by what is in them and before them; says what it does."""

    def __init__(self, name, told):
        self.name = name
        self._told = told
        self.blocks = {}

    def compute(self, tokens, *, salt=None, adapter="", private_from=None):
        """Cache a prompt's whole blocks, in one event for each run that was not there."""
        path, parent, run = (salt, adapter), None, []
        for number in range(len(tokens) // SIZE):
            part = tuple(tokens[number * SIZE : (number + 1) * SIZE])
            path = (*path, part)
            if private_from is not None and number >= private_from:
                path = (*path, "private", len(self.blocks))
            block = self.blocks.get(path)
            if block is not None and not run:
                parent = block
                continue
            hidden = private_from is not None and number == private_from
            block = private_hashes(1)[0] if hidden else _hash(path)
            self.blocks[path] = block
            extra = [*([adapter] if adapter else []), *([salt] if salt and not number else [])]
            run.append((block, part, keys_text(*extra)))
        if run:
            hashes, parts, keys = zip(*run, strict=True)
            content = StoredTokens(
                parent=parent,
                token_ids=[t for part in parts for t in part],
                block_size=SIZE,
                keys=keys,
                adapter=adapter,
            )
            self._told.stored(self.name, BlocksStored(hashes=hashes, content=content))

    def evict(self, number):
        if self.blocks:
            path = sorted(self.blocks, key=repr)[number % len(self.blocks)]
            self._told.gone(self.name, self.blocks.pop(path))

    def holds(self, tokens, *, salt=None, adapter=""):
        path = (salt, adapter)
        for number in range(len(tokens) // SIZE):
            path = (*path, tuple(tokens[number * SIZE : (number + 1) * SIZE]))
            if path not in self.blocks:
                return number * SIZE
        return len(tokens) // SIZE * SIZE


def _hash(path):
    """A block's name says what is in it and before it, as engines' names do."""
    return int.from_bytes(hashlib.sha256(repr(path).encode()).digest()[:8], "big")


TOKENS = st.lists(st.integers(0, 1), min_size=SIZE, max_size=5 * SIZE)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["compute", "compute", "evict", "approximate"]),
        st.integers(0, 1),
        TOKENS,
        st.sampled_from([None, "salt"]),
        st.sampled_from(["", "lora"]),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, asked=st.lists(TOKENS, min_size=1, max_size=4))
def test_what_is_said_of_any_prompt_is_what_the_caches_hold(steps, asked):
    told = PrefixResidency()
    caches = [Cache((name, 0), told) for name in "ab"]
    for what, which, tokens, salt, adapter in steps:
        match what:
            case "compute":
                caches[which].compute(tokens, salt=salt, adapter=adapter)
            case "approximate":
                caches[which].compute(tokens, salt=salt, adapter=adapter, private_from=1)
            case "evict":
                caches[which].evict(sum(tokens))
    for tokens in [*asked, *(step[2] for step in steps)]:
        for salt in (None, "salt"):
            for adapter in ("", "lora"):
                known = any(step[0] != "evict" and step[4] == "lora" for step in steps)
                found = told.resident(
                    np.array(tokens, dtype=np.int32), salt=salt, model=adapter or "the model"
                )
                for cache in caches:
                    truth = cache.holds(tokens, salt=salt, adapter=adapter if known else "")
                    assert found.get(cache.name, 0) == truth


def test_a_prompt_computed_once_is_known_to_its_last_whole_block():
    told = PrefixResidency()
    cache = Cache(("a", 0), told)
    tokens = prompt(1, 41)
    cache.compute(tokens.tolist())
    assert told.resident(tokens) == {("a", 0): 40}
    assert told.resident(tokens[:7]) == {("a", 0): 4}
    assert told.resident(tokens, salt="mine") == {("a", 0): 0}
    cache.evict(5)
    assert told.resident(tokens) == {("a", 0): cache.holds(tokens.tolist())}


def test_approximate_blocks_and_what_follows_them_are_nobodys_prefix():
    told = PrefixResidency()
    cache = Cache(("a", 0), told)
    tokens = prompt(1, 40)
    cache.compute(tokens.tolist(), private_from=3)
    assert told.resident(tokens) == {("a", 0): 12}
    (hashed,) = private_hashes(1)
    assert is_private(hashed)
    assert is_private(int.from_bytes(hashed[-8:], "big")), "engines publish 64 bits of it"
    assert not is_private(hashed[:-1] + b"x")


def test_engines_that_do_not_say_under_which_keys_are_not_spoken_of():
    told = PrefixResidency()
    told.stored(("a", 0), BlocksStored(hashes=(1,)))
    assert told.resident(prompt(1, 40)) == {}


def test_the_owner_of_an_exact_prefix_is_who_holds_the_blocks():
    """A donor is a copy that outlives them: it is reused as a donor, not as a prefix."""
    cost = FleetCost()
    donor = WorkerHolding(
        worker_id="b",
        dp_rank=0,
        covered_tokens=4096,
        prefix_tokens=4096,
        donor_key=1,
        donor_covered_tokens=4096,
    )
    found = Found(holdings=(donor,))

    def chosen(**resident):
        loads = [WorkerLoad(worker_id=n, resident_tokens=resident.get(n)) for n in "ab"]
        return choose(8192, found, loads, cost)

    assert chosen().choice is Choice.EXACT_PREFIX, "nobody follows: its donors' marks count"
    placed = chosen(a=0, b=0)
    assert placed.choice is Choice.DONOR
    placed = chosen(a=6000, b=0)
    assert (placed.choice, placed.option.worker_id) == (Choice.EXACT_PREFIX, "a")
    assert placed.option.prefix_tokens == 6000
    exact_only = choose(
        8192,
        found,
        [WorkerLoad(worker_id=n, resident_tokens=0) for n in "ab"],
        cost,
        can_reuse=False,
    )
    assert exact_only.choice is Choice.ROUTER


@pytest.fixture(scope="module")
def asked():
    """A gateway before two workers, one of which holds a prompt's blocks: what it chooses."""
    from transformers import AutoTokenizer

    held = Directory(SketchIndex(max_donors=16, max_postings=1000), lease_s=None)
    caches = FollowedCaches(held, [], secret=SECRET)
    tokens = (prompt(1, 800) % 4000).tolist()
    told = SimpleNamespace(stored=lambda name, event: caches.donors.blocks(name, batch(event)))
    for salt in (None, "salt"):
        Cache(("b", 0), told).compute(tokens if salt is None else tokens[::-1], salt=salt)
    client = {}
    for kind, header in (("alone", ""), ("before Dynamo", PIN_HEADER), ("tenants", "")):
        options = GatewayOptions(
            workers=(("a", "http://a"), ("b", "http://b")),
            trust_tenant_header=kind == "tenants",
            allowed_hosts=("testserver",),
            pin_header=header,
            cost=SLOW_PREFILL,
            health_interval_s=600.0,
        )
        tokenizer = AutoTokenizer.from_pretrained(str(MODEL))
        client[kind] = TestClient(
            create_gateway(held, tokenizer, options, gateway_settings(), caches=caches)
        )

    def ask(salt=None, tenant=None, reverse=False, kind="alone"):
        body = {"model": "m", "prompt": [*(tokens[::-1] if reverse else tokens), 1, 2]}
        headers = {} if tenant is None else {"x-tenant-id": tenant}
        kind = kind if tenant is None else "tenants"
        if salt is not None:
            body["cache_salt"] = salt
        said = client[kind].post("/semblend/placement", json=body, headers=headers).json()
        assert "choice" in said, said
        return said["choice"], said["worker"]

    yield ask
    caches.close()


def test_a_gateway_places_by_the_engines_blocks(asked):
    assert asked() == ("exact_prefix", "b")
    assert asked(reverse=True, salt="salt") == ("exact_prefix", "b")
    assert asked(kind="before Dynamo")[0] == "router", "Dynamo knows as much and is left alone"


def test_where_a_request_goes_tells_nothing_of_other_tenants(asked):
    assert asked(reverse=True)[0] == "router", "stored under a salt"
    assert asked(salt="another")[0] == "router"
    assert asked(tenant="one")[0] == "router", "an engine knows no tenants: it may be another's"
    assert asked(reverse=True, tenant="one", salt="salt") == ("exact_prefix", "b")
