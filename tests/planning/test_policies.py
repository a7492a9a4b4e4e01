"""Every registered policy, by itself, in one matrix."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.errors import SettingsError
from semblend.core.plan import Span, SpanKind
from semblend.planning.policies.base import (
    RecomputeRequest,
    known_policies,
    policy_from_spec,
    register_policy,
)

POLICIES = sorted(known_policies())


@st.composite
def requests(draw):
    position, spans = 0, []
    for _ in range(draw(st.integers(1, 6))):
        position += draw(st.integers(0, 30))
        length = draw(st.integers(1, 200))
        first = position == 0
        kind = SpanKind.PREFIX if first else draw(st.sampled_from(list(SpanKind)[1:]))
        spans.append(
            Span(
                donor_id="d",
                donor_start=0 if first else draw(st.integers(0, 99)),
                target_start=position,
                length=length,
                kind=kind,
            )
        )
        position += length
    tokens = np.zeros(position + 1, dtype=np.int32)
    return RecomputeRequest(tokens=tokens, spans=tuple(spans), end=position)


@pytest.mark.parametrize("name", POLICIES)
@given(request=requests())
def test_runs_lie_inside_spans_and_repeat_exactly(name, request):
    policy = policy_from_spec(name)
    runs = policy.runs(request)
    inside = {at for span in request.spans for at in range(span.target_start, span.target_end)}
    assert all(set(range(run.start, run.end)) <= inside for run in runs)
    assert policy.runs(request) == runs


@pytest.mark.parametrize("name", POLICIES)
def test_a_policys_spec_reads_back_as_itself(name):
    policy = policy_from_spec(name)
    assert policy_from_spec(policy.spec) == policy


def recomputed(spec, request):
    return {at for run in policy_from_spec(spec).runs(request) for at in range(run.start, run.end)}


@given(requests())
def test_none_recomputes_nothing_and_all_everything(request):
    assert recomputed("none", request) == set()
    assert len(recomputed("all", request)) == sum(span.length for span in request.spans)


@given(request=requests(), fewer=st.integers(1, 30), more=st.integers(0, 30))
def test_a_larger_head_recomputes_no_less(request, fewer, more):
    for name in ("span_head", "seams"):
        small = recomputed(f"{name}({fewer})", request)
        assert small <= recomputed(f"{name}({fewer + more})", request)


@given(requests())
def test_edit_safe_recomputes_everything_behind_an_edit(request):
    done = recomputed("edit_safe", request)
    for span in request.spans:
        positions = set(range(span.target_start, span.target_end))
        if span.kind is SpanKind.BEHIND_EDIT:
            assert positions <= done
        elif span.kind is SpanKind.PREFIX:
            assert not positions & done
        else:
            assert span.target_start in done


@given(request=requests(), ratio=st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_random_recomputes_the_asked_share_of_blocks(request, ratio):
    blocks = sum(-(-span.length // 32) for span in request.spans)
    runs = policy_from_spec(f"random({ratio})").runs(request)
    assert len(runs) == round(ratio * blocks)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("unknown", "known are"),
        ("", "known are"),
        ("span_head(0)", "1 or more"),
        ("span_head(1, 2)", "takes \\(tokens\\)"),
        ("span_head(", "known are"),
        ("random(2)", "ratio"),
        ("__import__('os')", "known are"),
        ("span_head(__import__('os'))", "takes"),
    ],
)
def test_bad_specs_say_what_would_be_right(spec, said):
    with pytest.raises(SettingsError, match=said):
        policy_from_spec(spec)


def test_a_name_is_registered_once():
    with pytest.raises(SettingsError, match="twice"):
        register_policy("none")(known_policies()["none"])
