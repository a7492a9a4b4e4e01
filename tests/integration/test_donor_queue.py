"""Prompts become donors once, beside the scheduler, while the engine's tree holds them."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch

from semblend.core.namespace import Namespace
from semblend.core.settings import Settings
from semblend.core.tokens import as_token_array
from semblend.integration.auditing.audit_stream import AuditStream
from semblend.integration.donor_queue import DonorQueue
from semblend.integration.provider import SemBlendProvider
from semblend.integration.scheduler.request import Arrival, Request
from semblend.integration.scheduler.settlement import Settlements
from semblend.integration.scheduler.setup import CaptureRules
from semblend.integration.stats import Stats

PROMPT = list(range(1000, 1500))
SETTINGS = Settings(embedder="none", allow_uncertified=True, recompute_policy="none")


class Tree:
    """The adapter's part of an engine with a prefix tree."""

    def __init__(self) -> None:
        self.provider = SemBlendProvider(Namespace.of(model="m"), SETTINGS)
        self.stats = Stats()
        self.audit = AuditStream(engine="toy", logger=logging.getLogger("toy"))
        self.donors = DonorQueue(
            self.provider,
            engine="toy",
            rules=CaptureRules(),
            audit=self.audit,
            stats=self.stats,
        )

    def finished(self, name: str = "r", **asked) -> Request[None]:
        ledger = self.provider.pipeline.ledger
        settlements = Settlements(ledger=ledger, audit=self.audit, stats=self.stats)
        arrival = Arrival(
            request_id=name,
            handle=None,
            tokens=as_token_array(PROMPT),
            namespace=self.provider.namespace_of(None, None),
            **asked,
        )
        return Request(arrival, settlements.accounts.open(name, prompt_tokens=len(PROMPT)))

    def keep(self, request: Request[None]) -> bool:
        kept = self.donors.keep(
            request, PROMPT, extra_key=None, cache_salt=None, last_slot=torch.tensor(499)
        )
        self.donors.wait()
        return kept

    @property
    def counts(self) -> dict[str, int]:
        return self.stats.data["counts"]


@pytest.fixture
def tree():
    tree = Tree()
    yield tree
    tree.provider.close()


def test_a_prompt_is_kept_once_and_forgotten_with_its_last_slot(tree):
    request = tree.finished()
    assert tree.keep(request)
    assert not tree.keep(request)
    assert tree.provider.stats().donors == 1
    tree.donors.freed([torch.tensor([3, 498])])
    tree.donors.wait()
    assert tree.provider.stats().donors == 1
    tree.donors.freed([torch.tensor([7]), torch.tensor([499])])
    tree.donors.wait()
    assert tree.provider.stats().donors == 0
    assert tree.counts == {"donors_registered": 1, "donors_evicted": 1}


@pytest.mark.parametrize("asked", [{"refusal": "lora"}, {"wants_capture": False}])
def test_prompts_that_may_not_donate_are_not_kept(tree, asked):
    assert not tree.keep(tree.finished(**asked))
    assert tree.provider.stats().donors == 0


def test_approximate_kv_is_never_a_donor(tree):
    request = tree.finished()
    request.tainted = True
    assert not tree.keep(request)
    assert tree.provider.stats().donors == 0


def test_a_prompt_that_found_the_line_full_is_counted_and_may_ask_again(tree):
    full, rules = replace(tree.donors._rules, queue=0), tree.donors._rules
    request = tree.finished()
    tree.donors._rules = full
    assert not tree.keep(request)
    assert tree.counts == {"donors_skipped": 1}
    tree.donors._rules = rules
    assert tree.keep(request)
    tree.donors._rules = full
    assert not tree.keep(request)
    assert tree.counts == {"donors_skipped": 1, "donors_registered": 1}, "a kept one is not skipped"
