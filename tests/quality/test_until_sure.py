"""Certifying until sure: wrong passes are as rare as stated, and bad policies end a run early."""

import math
from dataclasses import replace

import numpy as np
import pytest

from semblend.core.errors import SettingsError
from semblend.quality.doubt import Doubt, LimitAnswer, items_at_least
from semblend.quality.limits import Limits, LimitWatch
from semblend.quality.measure import Record
from semblend.quality.seam import MeasuredFacts
from semblend.quality.suite import Cell
from semblend.quality.until_sure import UntilSure, ordered

LIMITS = Limits(answers=0.05, disagreement=0.1, confidence=0.9)


def decided(losses, *, limit, alpha):
    doubt = Doubt(limit=limit, alpha=alpha)
    for loss in losses:
        if doubt.observe(loss) is not LimitAnswer.OPEN:
            break
    return doubt


@pytest.mark.parametrize("size", [1.0, 0.25], ids=["lost or not", "quarters"])
def test_a_share_at_its_limit_passes_as_seldom_as_stated_however_long_one_looks(size):
    rng = np.random.default_rng(11)
    runs, alpha, limit = 400, 0.1, 0.05
    passes = sum(
        decided(size * (rng.random(1000) < limit / size), limit=limit, alpha=alpha).answer
        is LimitAnswer.KEPT
        for _ in range(runs)
    )
    assert passes <= runs * alpha + 3 * math.sqrt(runs * alpha * (1 - alpha))


def test_a_policy_that_breaks_one_workload_of_many_passes_as_seldom_as_stated():
    """Every workload has to be decided, so their number does not help a bad policy."""
    rng = np.random.default_rng(12)
    runs, passes = 300, 0
    for _ in range(runs):
        rates = [0.0] * 5 + [LIMITS.answers]
        passes += all(
            decided(rng.random(600) < rate, limit=LIMITS.answers, alpha=LIMITS.alpha).answer
            is LimitAnswer.KEPT
            for rate in rates
        )
    assert passes <= runs * LIMITS.alpha + 3 * math.sqrt(runs * LIMITS.alpha * 0.9)


def test_a_good_policy_passes_and_a_bad_one_is_found_out_soon():
    rng = np.random.default_rng(13)
    good = [decided(rng.random(2000) < 0.005, limit=0.05, alpha=0.05) for _ in range(100)]
    assert sum(doubt.answer is LimitAnswer.KEPT for doubt in good) >= 98
    assert np.median([doubt.items for doubt in good]) <= 2 * items_at_least(limit=0.05, alpha=0.05)
    bad = [decided(rng.random(2000) < 0.4, limit=0.05, alpha=0.05) for _ in range(100)]
    assert all(doubt.answer is LimitAnswer.BROKEN for doubt in bad)
    assert np.median([doubt.items for doubt in bad]) <= 15


@pytest.mark.parametrize(("limit", "alpha"), [(0.01, 0.05), (0.02, 0.05), (0.1, 0.2)])
def test_the_stated_least_items_are_what_a_run_without_losses_takes(limit, alpha):
    assert decided([0.0] * 5000, limit=limit, alpha=alpha).items == items_at_least(
        limit=limit, alpha=alpha
    )


def test_a_limit_that_is_none_is_an_error():
    with pytest.raises(SettingsError):
        Doubt(limit=0.0, alpha=0.05)
    with pytest.raises(SettingsError):
        items_at_least(limit=0.1, alpha=1.0)


GOOD = Record(
    case_id="composed/composed/0",
    workload="composed",
    kind="composed",
    policy="span_head(8)",
    depth="",
    edits=0,
    prompt_tokens=1000,
    reusable_tokens=900,
    behind_edit_tokens=0,
    recomputed_tokens=50,
    declined_tokens=0,
    probe_tokens=0.0,
    answer="1",
    cold_answer="1",
    expected="1",
    right=True,
    cold_right=True,
    same=True,
    leaked=False,
    cold_leaked=False,
    f1=1.0,
    rouge_l=1.0,
    kl=1e-5,
    kl_worst=1e-5,
    top1=1.0,
    nll=0.0,
    cold_nll=0.0,
)


def watched(records, workload="composed"):
    watch = LimitWatch(workload, "p", LIMITS)
    for record in records:
        watch.observe(record)
    return watch


def test_items_without_confirmed_reuse_are_no_evidence():
    declined = replace(GOOD, declined_tokens=900, recomputed_tokens=0)
    watch = watched([declined, None] * 200)
    assert watch.answer is LimitAnswer.OPEN
    assert watch.unconfirmed == 400
    assert "not decided after 0 items" in watch.objections(noise_kl=0.0)[0]


def test_one_leak_on_a_control_breaks_it_at_once():
    assert watched([replace(GOOD, leaked=True)], "control_negation").answer is LimitAnswer.BROKEN
    assert watched([replace(GOOD, leaked=True)]).answer is LimitAnswer.OPEN


def test_a_workload_that_cold_seldom_answers_right_is_judged_by_agreement():
    wrong = replace(GOOD, right=False, cold_right=False)
    assert not watched([wrong] * 200).by_answers
    assert watched([wrong] * 200).answer is LimitAnswer.KEPT
    other = replace(wrong, same=False, top1=0.0)
    assert watched([other] * 200).answer is LimitAnswer.BROKEN
    # Cold's first items settle it: answers that turn right later change nothing.
    assert not watched([wrong] * 16 + [GOOD] * 400).by_answers


def test_answers_that_cold_has_wrong_cannot_prove_that_right_ones_are_kept():
    wrong = replace(GOOD, right=False, cold_right=False)
    few = watched([GOOD, wrong] * 30)
    assert few.by_answers
    assert few.to_dict()["items"] == 30


def test_dear_policies_and_far_distributions_are_refused_though_answers_are_kept():
    watch = watched([replace(GOOD, recomputed_tokens=300, kl=0.5)] * 100)
    assert watch.answer is LimitAnswer.KEPT
    assert [said.split(": ")[1] for said in watch.objections(noise_kl=0.01)] == [
        "KL 0.5 nats",
        "33.3% recomputed",
    ]


class FakeEngine:
    """Answers by a rule: the arithmetic of a campaign, without a model."""

    batch = 4
    tokenizer = None

    def __init__(self, rule):
        self.rule = rule
        self.asked = 0
        self.facts = MeasuredFacts(
            engine="none",
            version="0",
            model="m",
            fingerprint="f",
            dtype="float32",
            architecture="LlamaForCausalLM",
            kv_format="float32",
            hardware="none",
            method="rule",
        )

    def measure(self, work):
        self.asked += len(work)
        return [
            [
                replace(
                    self.rule(item, spec),
                    case_id=item.case_id,
                    workload=item.workload,
                    kind=item.kind,
                    policy=spec,
                )
                for spec in specs
            ]
            for item, specs in work
        ]

    def close(self):
        pass


@pytest.fixture
def campaign(monkeypatch, tmp_path):
    monkeypatch.setattr("semblend.quality.until_sure.to_item", lambda case, tokenizer: case)

    def make(rule, **options):
        engine = FakeEngine(rule)
        options = {"folder": tmp_path, "limits": LIMITS, "most_items": 300, **options}
        return UntilSure(engine, **options), engine

    return make


CELLS = [
    Cell(workload=name, items=1, specs=(), lengths=(300,))
    for name in ("instruction", "composed", "edited_exchanged", "control_negation")
]


def test_a_good_policy_is_certified_in_the_least_items_and_the_run_goes_on_where_it_stopped(
    campaign,
):
    sure, engine = campaign(lambda item, spec: GOOD)
    found = sure.run(CELLS, ["a"], seed=1, confirm_seed=2)
    assert found.objections == []
    least = LIMITS.least_items
    assert [len(watch.records) for watch in found.confirmation] == [least] * 4
    assert engine.asked <= 4 * (least + engine.batch)
    again, fresh = campaign(lambda item, spec: GOOD)
    assert again.run(CELLS, ["a"], seed=1, confirm_seed=2).objections == []
    assert fresh.asked == 0, "what was measured is not measured again"


def test_the_first_workload_that_fails_ends_the_run(campaign):
    lost = replace(GOOD, right=False)
    sure, engine = campaign(lambda item, spec: lost if item.workload == "edited" else GOOD)
    found = sure.run(CELLS, ["a"], seed=1, confirm_seed=2)
    assert [watch.workload for watch in found.confirmation] == ["edited_exchanged"]
    assert engine.asked <= 20
    assert "right answers lost" in found.objections[0]
    assert "not measured any more" in found.objections[-1]


def test_beaten_candidates_are_dropped_and_the_cheapest_of_the_rest_is_taken(campaign):
    rules = {
        "bad": replace(GOOD, right=False),
        "dear": replace(GOOD, recomputed_tokens=150),
        "cheap": GOOD,
    }
    asked = []

    def rule(item, spec):
        asked.append((item.workload, spec))
        return rules.get(spec, GOOD)

    policy, _ = campaign(rule)[0].choose(CELLS, list(rules), seed=1)
    assert policy == "cheap"
    assert ("edited", "bad") in asked
    assert ("composed", "bad") not in asked


def test_own_text_comes_first_then_the_likeliest_to_fail_and_what_is_not_known_last():
    own = Cell(workload="reading", items=1, specs=(), data="x")
    new = Cell(workload="new", items=1, specs=())
    assert [cell.workload for cell in ordered([new, *CELLS, own])] == [
        "reading",
        "edited_exchanged",
        "composed",
        "control_negation",
        "instruction",
        "new",
    ]
