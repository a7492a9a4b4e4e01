"""Plans keep their promises whatever donors and prompts look like."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend.core.errors import PlanError
from semblend.core.namespace import Namespace
from semblend.core.outcomes import DeclineReason
from semblend.core.settings import Settings
from semblend.discovery.runs import DonorRun
from semblend.pipeline import SemBlendPipeline
from semblend.planning.planner import SINK_TOKENS
from semblend.planning.whole_blocks import region_end, to_whole_blocks

NAMESPACE = Namespace.of(model="m")


def text(size, seed):
    return np.random.default_rng(seed).integers(0, 5_000, size, dtype=np.int32)


PASSAGES = [text(size, seed) for seed, size in enumerate((40, 70, 130, 200, 350))]
parts = st.lists(
    st.one_of(
        st.sampled_from(range(len(PASSAGES))).map(lambda i: PASSAGES[i]),
        st.tuples(st.integers(1, 60), st.integers(100, 200)).map(lambda p: text(*p)),
    ),
    min_size=1,
    max_size=6,
)


def pipeline_with(donors, **options):
    pipeline = SemBlendPipeline(
        Settings(**{"embedder": "none", "allow_uncertified": True, **options})
    )
    for number, donor in enumerate(donors):
        pipeline.register_donor(str(number), donor, NAMESPACE)
    return pipeline


@given(
    donors=st.lists(parts.map(np.concatenate), min_size=1, max_size=4),
    target=parts.map(np.concatenate),
    exact=st.integers(0, 200),
    block=st.sampled_from([1, 16]),
    policy=st.sampled_from(["none", "edit_safe(4)", "seams(3)", "all"]),
)
@settings(deadline=None, max_examples=150)
def test_every_span_is_the_targets_own_tokens(donors, target, exact, block, policy):
    exact = min(exact, target.size)
    plan = pipeline_with(donors, min_prompt_tokens=2).plan(
        target, NAMESPACE, exact_tokens=exact, block_size=block, policy=policy
    )
    assert plan.reason is not DeclineReason.INTERNAL_ERROR
    for span in plan.spans:
        donor = donors[int(span.donor_id)]
        assert (
            donor[span.donor_start : span.donor_end] == target[span.target_start : span.target_end]
        ).all()
        assert span.target_start >= exact
        assert span.delta == 0 or span.donor_start >= SINK_TOKENS
    assert plan.end % block == 0
    assert plan.end < target.size
    if plan.executable:
        assert plan.cost.saved > 0


def test_a_document_behind_an_edit_is_declined_by_the_default_policy():
    document = text(800, 1)
    edited = document.copy()
    edited[30] = 4_999
    plan = pipeline_with([document]).plan(edited, NAMESPACE)
    assert plan.spans
    assert plan.reason is DeclineReason.POLICY_DECLINED


def test_a_tiny_saving_is_not_worth_it():
    shared = text(40, 1)
    donor = np.concatenate([text(100, 2), shared])
    target = np.concatenate([text(3_000, 3), shared, text(3_000, 4)])
    plan = pipeline_with([donor]).plan(target, NAMESPACE)
    assert plan.spans
    assert plan.reason is DeclineReason.NOT_WORTH_IT


def test_without_a_certificate_plans_are_for_discovery_only():
    donor = text(600, 1)
    target = np.concatenate([text(50, 2), donor, text(5, 3)])
    plan = pipeline_with([donor], allow_uncertified=False).plan(target, NAMESPACE)
    assert plan.spans
    assert plan.reason is DeclineReason.NO_CERTIFICATE
    certified = SemBlendPipeline(Settings(embedder="none"), certified_policy="span_head(8)")
    certified.register_donor("0", donor, NAMESPACE)
    plan = certified.plan(target, NAMESPACE)
    assert plan.executable
    assert plan.policy == "span_head(8)"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"discovery_only": True}, DeclineReason.DISCOVERY_ONLY),
        ({"min_reuse_ratio": 0.95}, DeclineReason.BELOW_MIN_REUSE_RATIO),
        ({"enabled": False}, DeclineReason.DISABLED),
        ({"min_prompt_tokens": 5_000}, DeclineReason.SHORT_PROMPT),
    ],
)
def test_every_gate_names_its_reason(options, reason):
    donor = text(600, 1)
    target = np.concatenate([text(50, 2), donor, text(5, 3)])
    plan = pipeline_with([donor], **options).plan(target, NAMESPACE)
    assert plan.reason is reason
    assert not plan.executable


def test_strict_prefix_boundary_ends_the_region_on_a_block():
    donor = text(600, 1)
    target = np.concatenate([text(50, 2), donor, text(5, 3)])
    strict = pipeline_with([donor]).plan(target, NAMESPACE, block_size=16)
    loose = pipeline_with([donor], strict_prefix_boundary=False).plan(
        target, NAMESPACE, block_size=16
    )
    assert strict.end == 650 // 16 * 16
    assert loose.end == 650


@given(start=st.integers(0, 100), length=st.integers(1, 100), block=st.sampled_from([1, 4, 16, 64]))
def test_whole_blocks_are_the_largest_aligned_part(start, length, block):
    run = DonorRun(donor_id="d", donor_start=7, target_start=start, length=length)
    rounded = to_whole_blocks(run, block)
    aligned = [
        at
        for at in range(start, run.target_end)
        if start <= at // block * block and (at // block + 1) * block <= run.target_end
    ]
    if rounded is None:
        assert not aligned
    else:
        assert list(range(rounded.target_start, rounded.target_end)) == aligned
        assert rounded.donor_start - rounded.target_start == 7 - start


def test_whole_block_plans_hold_whole_blocks_only():
    donor = text(600, 1)
    target = np.concatenate([text(51, 2), donor, text(25, 3)])
    plan = pipeline_with([donor]).plan(target, NAMESPACE, block_size=16, whole_blocks=True)
    assert plan.executable
    assert all(span.target_start % 16 == 0 and span.length % 16 == 0 for span in plan.spans)


def test_a_block_size_below_one_is_an_error():
    with pytest.raises(PlanError, match="block_size"):
        region_end(10, prompt_tokens=20, block_size=0)
