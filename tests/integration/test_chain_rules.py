"""Which requests continue one another: under the same key and the same policy, if both may."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from semblend.core.account import Accounts
from semblend.core.chain import continued_tokens
from semblend.core.ledger import Ledger
from semblend.core.namespace import Namespace
from semblend.integration.scheduler.chain_rules import ChainRules
from semblend.integration.scheduler.request import Arrival, Continuation, Request
from tests.integration.models import random_tokens

PROMPT, ANSWER = random_tokens(64, seed=1), random_tokens(16, seed=2)
TOLD = np.concatenate((PROMPT, ANSWER))
PIPELINE: Any = SimpleNamespace(
    share_key=lambda namespace: str(namespace.cache_salt).encode(), objection=lambda policy: None
)
RULES = ChainRules(pipeline=PIPELINE)


def request(*, salt="one", turns=None, **options):
    namespace = options.pop("namespace", Namespace.of(model="m", cache_salt=salt))
    arrival = Arrival(request_id="r", handle=None, tokens=PROMPT, namespace=namespace, **options)
    made = Request(arrival, Accounts(ledger=Ledger()).open("r", prompt_tokens=len(PROMPT)))
    if turns is not None:
        made.follow(Continuation(exact_tokens=0, turns=turns))
    return made


def continued(first, second):
    link = RULES.link(first, TOLD, computed_tokens=len(TOLD) - 1, exact_tokens=0)
    follower = RULES.follower(second, np.concatenate((TOLD, random_tokens(8, seed=3))))
    return continued_tokens(link, follower, block_size=1)


def test_a_conversation_goes_on_under_its_own_key_and_policy_alone():
    assert continued(request(), request()) == len(TOLD) - 1
    assert continued(request(policy="all"), request(policy="all")) == len(TOLD) - 1
    assert continued(request(policy="all"), request()) == 0
    assert continued(request(salt="one"), request(salt="another")) == 0


def test_turns_are_counted_on():
    turns = [
        RULES.link(request(turns=n), TOLD, computed_tokens=9, exact_tokens=0).turns
        for n in (None, 1, 4)
    ]
    assert turns == [1, 2, 5]


@pytest.mark.parametrize(
    ("options", "follows", "kept"),
    [
        ({}, True, True),
        ({"may_reuse": False}, False, True),
        ({"wants_capture": False}, True, False),
        ({"refusal": "multimodal"}, False, False),
        ({"ladder_id": "a ladder"}, False, False),
        ({"namespace": Namespace(model="m")}, False, False),
    ],
)
def test_who_may_continue_and_be_continued(options, follows, kept):
    made = request(**options)
    assert (RULES.may_follow(made), RULES.may_keep(made)) == (follows, kept)


def test_an_objection_and_a_refusal_stop_both():
    refused = SimpleNamespace(
        share_key=PIPELINE.share_key, objection=lambda policy: "no certificate"
    )
    for rules in (
        ChainRules(pipeline=PIPELINE, objection=lambda _: "its namespace is suspended"),
        ChainRules(pipeline=refused),
    ):
        assert not rules.may_follow(request())
        assert not rules.may_keep(request())
