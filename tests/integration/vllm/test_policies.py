"""Every recompute policy runs in vLLM, but for those that need a cold prefill to choose."""

from __future__ import annotations

import re
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from semblend.integration.vllm.layer_queries import latent_queries
from semblend.integration.worker.loads import WorkerLoads
from semblend.planning.policies.base import known_policies, policy_from_spec
from tests.integration.models import joined, random_tokens

DOCUMENT = random_tokens(840, seed=141)
DONOR = joined(random_tokens(50, seed=142), DOCUMENT, random_tokens(20, seed=143))
EDITED = joined(DOCUMENT[:420], random_tokens(3, seed=144), DOCUMENT[423:])
TARGET = joined(random_tokens(110, seed=145), EDITED, random_tokens(33, seed=146))
SPECS = sorted({spec for name, cls in known_policies().items() for spec in (name, *cls.grid)})
UNSUPPORTED = re.compile(r"depth_shift|kv_deviation|edit_dependents\(\d+, \d+, \d+, 0\.0*[1-9]")
"""In a policy's full text: it compares with cold K/V, asks which tokens refer to others, or goes by
a table that these random weights do not have."""


@pytest.mark.parametrize("spec", SPECS)
def test_a_policy_runs_or_is_declined_by_name(make_engine, spec):
    engine = make_engine("llama")
    engine.donate(DONOR)
    answer = engine.run(TARGET, hints={"policy": spec, "capture": False})
    said, full = answer.semblend, policy_from_spec(spec).spec
    if full == "all" or UNSUPPORTED.search(full):
        # Random tokens have no sentence ends: what runs up to one is over any budget.
        over = full == "all" or "budget(span_dependents" in full
        assert said["reason"] == ("policy_declined" if over else "unsupported")
        assert full in said["detail"]
        assert said["reused_tokens"] == answer.cached_tokens == 0
        return
    assert said["outcome"] == "materialised", said
    assert said["policy"] == full
    assert said["exact_tokens"] + said["reused_tokens"] == answer.cached_tokens
    assert said["reused_tokens"] > 100


def test_a_probe_that_does_not_pay_is_declined_before_anything_is_loaded(make_engine):
    """A probe's pass over a long tail, and the tail again, is more than a cold prefill."""
    engine = make_engine("llama")
    engine.donate(DONOR)
    target = joined(random_tokens(110, seed=145), DOCUMENT[:300], random_tokens(500, seed=146))
    loads = len(engine.scheduler_connector.loads)
    answer = engine.run(target, hints={"policy": "query_attention(0.1)", "capture": False})
    assert answer.semblend["reason"] == "not_worth_it"
    assert len(engine.scheduler_connector.loads) == loads
    assert answer.tokens == engine.cold(target).tokens
    engine.forget_prefixes()
    plain = engine.run(target, hints={"policy": "none", "capture": False})
    assert plain.semblend["outcome"] == "materialised", "without a probe it pays"


def test_what_a_probe_computed_in_front_is_kept_where_the_policy_declines(make_engine):
    engine = make_engine("llama")
    engine.donate(DONOR)
    engine.forget_prefixes()
    cold = engine.cold(TARGET)
    expected = engine.kv(cold, 0, len(TARGET))
    bad, take = [], WorkerLoads.take_bad_blocks

    def taken(loads):
        blocks = take(loads)
        bad.extend(blocks)
        return blocks

    with (
        patch("semblend.planning.planner.with_probe_cost", lambda plan, *_, **__: plan),
        patch.object(WorkerLoads, "take_bad_blocks", taken),
        patch.object(engine.scheduler._settlements, "failed") as failed,
    ):
        answer = engine.run(TARGET, hints={"policy": "query_attention(1.0)", "capture": False})
    said = answer.semblend
    assert (said["reason"], said["reused_tokens"]) == ("policy_declined", 0)
    failed.assert_not_called()
    assert len(bad) == -(-len(TARGET) // 32) - 110 // 32, "whole blocks in front of the first copy"
    assert answer.tokens == cold.tokens
    assert answer.cached_tokens == 0, "computed is not cached"
    assert (engine.kv(answer, 0, len(TARGET)) - expected).abs().max() < 1e-4
    again = engine.run(TARGET, hints={"reuse": False, "capture": False})
    assert again.cached_tokens >= len(TARGET) - 32, "all of it is exact, and everybody's"
    assert (engine.kv(again, 0, len(TARGET)) - expected).abs().max() < 1e-4


def test_latent_queries_meet_rows_as_queries_meet_keys():
    """The product with a row [latent, k_pe] is the model's scaled product with the K made of it."""
    generator = torch.Generator().manual_seed(3)

    def numbers(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    heads, plain, latent, turned = 3, 8, 24, 4
    layer = SimpleNamespace(
        kv_lora_rank=latent,
        num_heads=heads,
        qk_nope_head_dim=plain,
        qk_rope_head_dim=turned,
        W_UK_T=numbers(heads, plain, latent),
        scale=0.3,
    )
    query, rows = numbers(5, heads * (plain + turned)), numbers(7, latent + turned)
    met = latent_queries(layer, query).view(5, heads, -1) @ rows.T * (latent + turned) ** -0.5
    made = torch.einsum("kl,hpl->khp", rows[:, :latent], layer.W_UK_T)
    shared = rows[:, None, latent:].expand(-1, heads, -1)
    keys = torch.cat((made, shared), dim=-1)
    scores = torch.einsum("thd,khd->thk", query.view(5, heads, -1), keys) * layer.scale
    torch.testing.assert_close(met, scores)
