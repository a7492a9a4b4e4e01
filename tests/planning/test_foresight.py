"""A probing policy's second pass is in the estimate before anything is loaded."""

import numpy as np
import pytest

from semblend.core.namespace import Namespace
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Hole, Plan, Span
from semblend.core.settings import Settings
from semblend.pipeline import SemBlendPipeline
from semblend.planning.cost import CostModel
from semblend.planning.recompute import left_to_compute, plan_runs

NAMESPACE = Namespace.of(model="m")


def text(size, seed):
    return np.random.default_rng(seed).integers(0, 5_000, size, dtype=np.int32)


DOCUMENT = text(400, 1)


def planned(policy, *, head=30, tail=20):
    pipeline = SemBlendPipeline(Settings(embedder="none", allow_uncertified=True))
    pipeline.register_donor("d", np.concatenate((text(50, 2), DOCUMENT)), NAMESPACE)
    prompt = np.concatenate((text(head, 3), DOCUMENT, text(tail, 4)))
    return pipeline.plan(prompt, NAMESPACE, policy=policy)


def test_a_probe_that_pays_is_planned_and_its_second_pass_counted():
    plain, probing = planned("none"), planned("query_attention(0.1)")
    assert probing.executable
    # The tail again, whole blocks of a tenth of the document, and a pass over two holes.
    more = probing.cost.planned - plain.cost.planned
    fixed = CostModel().pass_fixed + CostModel().span_fixed
    assert more == pytest.approx(20 + 32 + fixed, rel=0.05)


def test_a_probe_that_does_not_pay_is_declined_with_the_reason():
    assert planned("none", tail=500).executable
    probing = planned("query_attention(0.1)", tail=500)
    assert probing.reason is DeclineReason.NOT_WORTH_IT
    assert "saves -" in probing.detail


def test_a_policy_that_will_not_ask_costs_no_second_pass():
    """Nothing is displaced or edited, so that there is nothing to choose among."""
    for policy in ("query_attention(0.1, 16, 'edited')", "query_attention(0.0)"):
        assert planned(policy).cost == planned("none").cost


def test_what_a_probe_computed_stands_up_to_the_first_token_that_was_added():
    span = Span(donor_id="d", donor_start=50, target_start=30, length=400)
    before = Plan(
        namespace="n", prompt_tokens=450, spans=(span,), end=430, recompute=(Hole(200, 220),)
    )
    assert left_to_compute(before, before) == ()
    after = Plan(
        namespace="n",
        prompt_tokens=450,
        spans=(span,),
        end=430,
        recompute=(Hole(100, 110), Hole(200, 240)),
    )
    assert left_to_compute(before, after) == (Hole(100, 110), Hole(200, 240), Hole(430, 450))
    grown = Plan(
        namespace="n", prompt_tokens=450, spans=(span,), end=430, recompute=(Hole(200, 240),)
    )
    assert left_to_compute(before, grown) == (Hole(220, 240), Hole(430, 450))
    assert plan_runs(before) == (Hole(0, 30), Hole(200, 220), Hole(430, 450))
