"""Each mode does what it says and no more."""

from __future__ import annotations

import asyncio
import json

import pytest
import torch

from semblend.core.plan import Plan
from semblend.integration.ladder import RungReply, climb, rungs_of
from semblend.integration.vllm.connector_v1 import SemBlendConnectorV1
from tests.integration.models import joined, plain_model, random_tokens
from tests.integration.vllm.servers import EXAMPLES
from tests.oracles.attention import lent_to, segmented_forward

DOCUMENT = random_tokens(420, seed=81)
DONOR = joined(random_tokens(50, seed=82), DOCUMENT, random_tokens(20, seed=83))
TARGET = joined(random_tokens(110, seed=84), DOCUMENT, random_tokens(33, seed=85))


def test_discovery_only_finds_and_supplies_nothing(make_engine, tmp_path):
    audit = tmp_path / "audit.jsonl"
    # The default mode, with vLLM's default worker and failure policy: as in the quick start.
    example = json.loads((EXAMPLES / "discovery_kv_transfer_config.json").read_text())
    assert example["kv_connector"] == SemBlendConnectorV1.__name__
    assert example["kv_connector_module_path"] == SemBlendConnectorV1.__module__
    settings = example["kv_connector_extra_config"]
    assert settings["mode"] == "discovery_only"
    engine = make_engine("llama", **settings, audit_path=str(audit), engine={"worker_cls": "auto"})
    cold = engine.run(TARGET)
    engine.run(DONOR)
    again = engine.run(joined(random_tokens(64, seed=86), DOCUMENT, random_tokens(9, seed=87)))
    assert again.semblend["outcome"] == "discovery_only"
    assert again.semblend["reason"] == "discovery_only"
    assert again.cached_tokens == 0
    assert engine.worker.access is None, "no K/V is captured or kept"
    assert not engine.scheduler_connector.loads
    assert engine.run(TARGET).tokens == cold.tokens
    engine.scheduler.audit.flush()
    events = [json.loads(line)["event"] for line in audit.read_text().splitlines()]
    assert "semantic_lookup_hit" in events
    assert "discovery_only_no_supply" in events
    assert events.count("donor_registered") == 3
    assert "runtime_materialized" not in events


def test_exact_prefix_restores_what_the_prefix_cache_has_lost(make_engine):
    engine = make_engine("llama", mode="exact_prefix", engine={"worker_cls": "auto"})
    first = engine.run(DONOR)
    expected = engine.kv(first, 0, 480)
    engine.forget_prefixes()
    other_end = joined(DONOR[:400], random_tokens(60, seed=88))
    cold = engine.cold(other_end)
    warm = engine.run(other_end)
    assert warm.semblend["outcome"] == "materialised"
    assert warm.semblend["reused_tokens"] == warm.cached_tokens == 384
    assert warm.semblend["approximate"] is False
    assert warm.tokens == cold.tokens
    assert torch.equal(engine.kv(warm, 0, 384), expected[:, :, :384])
    # It is exact, so others share it and it may be a donor itself.
    shared = engine.run(other_end, hints={"reuse": False})
    assert shared.cached_tokens >= 384
    assert engine.scheduler.planner.pipeline.stats().donors == 2
    moved = engine.run(TARGET, hints={"capture": False})
    assert moved.semblend["outcome"] in ("cold", "declined", "discovery_only")
    assert moved.cached_tokens == 0


def test_request_only_loads_the_beginning_without_a_hole(make_engine):
    engine = make_engine("llama", mode="request_only_experimental", engine={"worker_cls": "auto"})
    engine.donate(DONOR)
    leading = joined(DOCUMENT, random_tokens(60, seed=89))
    warm = engine.run(leading)
    assert warm.semblend["outcome"] == "materialised"
    assert warm.semblend["hole_tokens"] == 0
    assert warm.semblend["reused_tokens"] == warm.cached_tokens == 416
    assert warm.semblend["approximate"] is True
    exact = engine.run(leading, hints={"reuse": False})
    assert exact.cached_tokens == 0, "request-local: nobody else finds it"
    assert exact.tokens == engine.cold(leading).tokens
    behind = engine.run(TARGET, hints={"capture": False})
    assert behind.cached_tokens == 0, "a document behind a hole is out of reach"


def test_segmented_without_a_certificate_is_discovery(make_engine, caplog):
    with caplog.at_level("WARNING", logger="vllm.semblend"):
        engine = make_engine("llama", mode="segmented", min_prompt_tokens=65)
    assert "no quality certificate" in caplog.text
    engine.donate(DONOR)
    answer = engine.run(TARGET)
    assert answer.semblend["outcome"] == "discovery_only"
    assert answer.semblend["reason"] == "no_certificate"
    assert answer.cached_tokens == 0
    assert len(engine.worker.donors) == 0, "K/V that may not be loaded is not kept"
    settled = engine.scheduler.planner.pipeline.ledger.recent()[-1]
    assert 300 < settled.reusable_tokens <= 420
    assert settled.reusable_tokens < settled.computed_tokens, "they are computed all the same"


def test_one_line_says_which_mode_runs_and_a_request_has_one_info_line(make_engine, caplog):
    with caplog.at_level("INFO", logger="vllm.semblend"):
        engine = make_engine("llama", mode="discovery_only", engine={"worker_cls": "auto"})
        (line,) = [line for line in caplog.messages if line.startswith("SemBlend runs as")]
        assert "discovery_only" in line
        assert "semblend certify" in line
        caplog.clear()
        engine.run(DONOR)
        engine.run(TARGET)
        said = [line for line in caplog.messages if line.startswith("SemBlend")]
        assert len(said) == 2, said


def test_requests_choose_for_themselves(make_engine):
    engine = make_engine("llama", reuse="opt_in", capture="hinted")
    engine.run(DONOR)
    assert engine.scheduler.planner.pipeline.stats().donors == 0
    engine.forget_prefixes()
    engine.run(DONOR, hints={"capture": True})
    assert engine.scheduler.planner.pipeline.stats().donors == 1
    assert engine.run(TARGET).semblend["reason"] == "disabled"
    engine.forget_prefixes()
    assert engine.run(TARGET, hints={"reuse": True}).semblend["outcome"] == "materialised"
    engine.forget_prefixes()
    chosen = engine.run(TARGET, hints={"reuse": True, "policy": "span_head(16)"})
    assert chosen.semblend["policy"] == "span_head(16)"
    assert chosen.semblend["recomputed_tokens"] == 16


def test_policies_that_need_a_probe_nobody_makes_are_declined(make_engine):
    engine = make_engine("llama")
    engine.donate(DONOR)
    for policy in ("kv_deviation(0.1)", "edit_dependents(1, 8, 96, 0.05)"):
        answer = engine.run(TARGET, hints={"policy": policy, "capture": False})
        assert answer.semblend["reason"] == "unsupported"
        assert "probe" in answer.semblend["detail"]
        assert answer.cached_tokens == 0
        engine.forget_prefixes()
    cold = engine.cold(TARGET)
    asked = engine.run(TARGET, hints={"policy": "query_attention(0.25)", "capture": False})
    assert asked.semblend["outcome"] == "materialised"
    assert 64 <= asked.semblend["recomputed_tokens"] <= 112
    assert asked.semblend["reused_tokens"] == asked.cached_tokens, "computed is not cached"
    engine.forget_prefixes()
    everything = engine.run(TARGET, hints={"policy": "query_attention(1.0)", "capture": False})
    assert everything.tokens == cold.tokens, "recomputing everything it can is cold"


@pytest.fixture
def staged(make_engine):
    return make_engine("llama", execution="staged", engine={"worker_cls": "auto"})


def climb_in_process(engine, tokens, **options):
    """A ladder on an engine in this process."""

    async def submit(prompt, salt, hints, is_prompt):
        answer = engine.run(
            tokens[: len(prompt)],
            salt=salt,
            hints=hints or None,
            max_tokens=options.get("max_tokens", 6) if is_prompt else 1,
        )
        return RungReply(reply=answer, semblend=answer.semblend)

    return asyncio.run(climb(tokens.tolist(), submit, user_salt=options.get("user_salt"))).reply


def test_the_ladder_computes_what_the_mathematics_says(staged):
    engine = staged
    second = random_tokens(200, seed=90)
    donor = engine.donate(DONOR)
    lent = {"first": engine.kv(donor, 0, len(DONOR)).double()}
    other = joined(random_tokens(40, seed=91), second)
    lent["second"] = engine.kv(engine.donate(other), 0, len(other)).double()
    target = joined(TARGET, second, random_tokens(25, seed=92))
    seen = len(engine.scheduler_connector.loads)
    answer = climb_in_process(engine, target)
    loads = engine.scheduler_connector.loads[seen:]
    assert answer.semblend["ladder"]["rungs"] == len(loads) + 1
    assert answer.semblend["ladder"]["reused_tokens"] == sum(load.reused_tokens for load in loads)
    assert answer.semblend["ladder"]["reused_tokens"] > 500
    model = plain_model("llama")
    theta = model.config.rope_parameters["rope_theta"]
    borrowed = {}
    for load in loads:
        assert not load.holes, "the engine's own forward computes them"
        donors = {
            span.donor_id: lent["first" if span.length > 200 else "second"] for span in load.copies
        }
        borrowed |= lent_to(load.copies, donors, theta)
    expected = segmented_forward(model, target, borrowed)
    assert answer.tokens[0] == int(expected.logits[-1].argmax())
    got = engine.kv(answer, 0, len(target)).double()
    torch.testing.assert_close(got[:, 0], expected.keys, atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(got[:, 1], expected.values, atol=2e-3, rtol=1e-3)


def test_a_ladder_poisons_nothing_and_donates_nothing(staged):
    engine = staged
    engine.forget_donors()
    engine.forget_prefixes()
    engine.donate(DONOR)
    climb_in_process(engine, TARGET)
    assert engine.scheduler.planner.pipeline.stats().donors == 1
    exact = engine.run(TARGET, hints={"capture": False})
    assert exact.cached_tokens == 0
    assert exact.tokens == engine.cold(TARGET).tokens


def test_a_ladder_reaches_no_other_tenants_donors(staged):
    engine = staged
    engine.forget_donors()
    engine.forget_prefixes()
    engine.run(DONOR, salt="tenant-a")
    other = climb_in_process(engine, TARGET, user_salt="tenant-b")
    assert "ladder" not in other.semblend
    own = climb_in_process(engine, TARGET, user_salt="tenant-a")
    assert own.semblend["ladder"]["reused_tokens"] > 300


def test_nested_and_staged_agree_on_the_same_plan(make_engine):
    """Block-aligned holes make the two carry out one and the same plan."""
    nested = make_engine("llama")
    nested.donate(DONOR)
    plans: list[Plan] = []

    def aligned(plan, tokens):
        from dataclasses import replace

        from semblend.core.plan import Hole
        from semblend.integration.plan_cuts import ending_at

        if not plan.spans:
            return plan
        plan = ending_at(plan, plan.end // 32 * 32)
        rungs = rungs_of(plan, 32)
        covered = [span for rung in rungs for span in rung.spans]
        recompute = [
            Hole(span.target_start, kept.target_start)
            for span, kept in zip(plan.spans, covered, strict=True)
            if kept.target_start > span.target_start
        ]
        plans.append(replace(plan, recompute=tuple(recompute)))
        return plans[-1]

    nested.rewrite = aligned
    inside = nested.run(TARGET)
    assert inside.semblend["outcome"] == "materialised"
    engine = make_engine("llama", execution="staged", engine={"worker_cls": "auto"})
    engine.donate(DONOR)
    outside = climb_in_process(engine, TARGET)
    assert outside.semblend["ladder"]["reused_tokens"] == inside.semblend["reused_tokens"]
    assert outside.tokens == inside.tokens


def test_a_setting_of_meaning_warns_once_where_donors_are_found_by_tokens(
    make_engine, caplog, monkeypatch
):
    monkeypatch.setenv("SEMBLEND_EMBEDDER", "minilm")
    with caplog.at_level("WARNING", logger="vllm.semblend"):
        make_engine("llama", mode="segmented_experimental", min_prompt_tokens=70)
    (line,) = [line for line in caplog.messages if "no effect here" in line]
    assert "SEMBLEND_EMBEDDER" in line
    assert "provider: semblend" in line
