"""Every registered policy, by itself, in one matrix."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend.core.errors import PlanError, SettingsError
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Hole, Plan, Span, SpanKind, merge_holes
from semblend.integration.probing import can_probe
from semblend.planning.boundaries import Boundaries
from semblend.planning.depth import declined_without_table, drift_for, shifts_depth, table_for
from semblend.planning.overlaps import parts_inside
from semblend.planning.policies.base import (
    RecomputeRequest,
    known_policies,
    policy_from_spec,
    register_policy,
)
from semblend.planning.policies.query_attention import is_displaced
from semblend.planning.recompute import inside_spans, probed, with_policy

POLICIES = sorted(known_policies())
SPECS = sorted({spec for name, cls in known_policies().items() for spec in (name, *cls.grid)})
WORDS = ["a", " b", ".", " C", "\n\n", "3", " d"]
BOUNDARIES = Boundaries.from_texts(WORDS)


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
    seed = draw(st.integers(0, 99))
    tokens = np.random.default_rng(seed).integers(0, len(WORDS), position + 1, dtype=np.int32)
    return RecomputeRequest(
        tokens=tokens,
        spans=tuple(spans),
        end=position,
        boundaries=draw(st.sampled_from([None, BOUNDARIES])),
    )


class FakeProbe:
    """Scores without a model, the same for the same prompt. Notes what it was asked."""

    def __init__(self, request):
        self._scores = np.random.default_rng(len(request.tokens)).random(len(request.tokens))
        self.asked = set()

    def tail_attention(self):
        self.asked.add("tail_attention")
        return self._scores

    def deviation(self, layers):
        self.asked.add("deviation")
        return self._scores[::-1]

    def edit_attention(self, layers):
        self.asked.add("edit_attention")
        return self._scores**2


def all_runs(policy, request):
    runs = inside_spans(policy.runs(request), request.spans)
    if policy.dynamic:
        taken = replace(request, taken=runs)
        runs = (*runs, *policy.probed_runs(taken, FakeProbe(request)))
    return list(runs)


def positions(runs):
    return {at for run in runs for at in range(run.start, run.end)}


def recomputed(spec, request):
    return positions(all_runs(policy_from_spec(spec), request))


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=25)
@given(request=requests())
def test_runs_lie_inside_spans_and_repeat_exactly(spec, request):
    policy = policy_from_spec(spec)
    inside = {at for span in request.spans for at in range(span.target_start, span.target_end)}
    assert positions(all_runs(policy, request)) <= inside
    assert all_runs(policy, request) == all_runs(policy, request)


@pytest.mark.parametrize("spec", SPECS)
def test_a_policy_asks_for_what_it_declares_and_nothing_else(spec):
    # Long and far from where they stood, so that everything that may be asked is.
    spans = tuple(
        Span(donor_id="d", donor_start=0, target_start=start, length=1000, kind=kind)
        for start, kind in ((500, SpanKind.MOVED), (2000, SpanKind.BEHIND_EDIT))
    )
    request = RecomputeRequest(tokens=np.zeros(3100, dtype=np.int32), spans=spans, end=3000)
    policy, probe = policy_from_spec(spec), FakeProbe(request)
    policy.probed_runs(request, probe)
    assert probe.asked <= policy.probes
    assert policy.dynamic is bool(policy.probes) is bool(probe.asked)
    assert can_probe(spec) is (policy.probes <= {"tail_attention"})


@pytest.mark.parametrize("spec", SPECS)
def test_a_text_is_read_once_and_everybody_gets_the_same_policy(spec):
    assert policy_from_spec(spec) is policy_from_spec(spec)


def test_a_text_too_long_to_keep_is_read_each_time():
    spec = " + ".join(["none"] * 200)
    assert policy_from_spec(spec) == policy_from_spec(spec)
    assert policy_from_spec(spec) is not policy_from_spec(spec)


def test_candidates_can_be_read_and_are_on_the_leaderboard():
    for cls in known_policies().values():
        assert set(cls.candidates) <= set(cls.grid)
    assert any(cls.candidates for cls in known_policies().values())


@pytest.mark.parametrize("spec", SPECS)
def test_a_policys_spec_reads_back_as_itself(spec):
    policy = policy_from_spec(spec)
    assert policy_from_spec(policy.spec) == policy
    assert policy_from_spec(f"({policy.spec}) + none").first == policy


@pytest.mark.parametrize("name", [n for n, cls in known_policies().items() if cls.ordered])
@given(request=requests())
def test_a_grid_goes_from_cheap_to_dear(name, request):
    sizes = [len(recomputed(spec, request)) for spec in known_policies()[name].grid]
    if name != "budget":  # declining a span may cost more than a dearer policy that fits
        assert sizes == sorted(sizes)


@given(requests())
def test_none_recomputes_nothing_and_all_everything(request):
    assert recomputed("none", request) == set()
    assert len(recomputed("all", request)) == sum(span.length for span in request.spans)


@given(request=requests(), fewer=st.integers(1, 30), more=st.integers(0, 30))
def test_a_larger_head_recomputes_no_less(request, fewer, more):
    for name in ("span_head", "seams"):
        small = recomputed(f"{name}({fewer})", request)
        assert small <= recomputed(f"{name}({fewer + more})", request)


@given(
    request=requests(), ratio=st.floats(0, 1), block=st.sampled_from([1, 16, 32, 64]),
    name=st.sampled_from(["query_attention({}, {})", "kv_deviation({}, 2, {})"]),
)  # fmt: skip
def test_chosen_blocks_keep_within_the_share_asked_for(request, ratio, block, name):
    taken = recomputed(name.format(ratio, block), request)
    assert len(taken) <= ratio * sum(span.length for span in request.spans)


def test_attention_among_displaced_spans_leaves_documents_in_place_alone():
    def span(kind, donor, target):
        return Span(donor_id="d", donor_start=donor, target_start=target, length=64, kind=kind)

    in_place = [span(SpanKind.MOVED, 40, 12), span(SpanKind.BEHIND_EDIT, 5000, 5100)]
    elsewhere = [
        span(SpanKind.MOVED, 900, 5),  # from the middle of its document to the front
        span(SpanKind.MOVED, 20, 2000),
        span(SpanKind.MOVED, 4000, 4010),  # the same place, other text before it
        span(SpanKind.BEHIND_EDIT, 100, 6000),
    ]
    assert not any(is_displaced(s) for s in in_place)
    assert all(is_displaced(s) for s in elsewhere)


class EvenProbe:
    """The question attends to everything alike."""

    def tail_attention(self):
        return np.ones(400)


@pytest.mark.parametrize(
    ("kind", "opens", "donor_start", "competes"),
    [
        (SpanKind.MOVED, True, 9, False),  # a whole document after another instruction
        (SpanKind.MOVED, False, 9, True),  # its first words changed
        (SpanKind.MOVED, True, 900, True),
        (SpanKind.BEHIND_EDIT, False, 9, True),
        (SpanKind.PREFIX, False, 12, False),
    ],
)
def test_attention_among_changed_spans_leaves_only_whole_documents_alone(
    kind, opens, donor_start, competes
):
    start = 0 if kind is SpanKind.PREFIX else 12
    span = Span(
        donor_id="d",
        donor_start=0 if kind is SpanKind.PREFIX else donor_start,
        target_start=start,
        length=300,
        kind=kind,
        opens=opens,
    )
    request = RecomputeRequest(
        tokens=np.zeros(400, dtype=np.int32), spans=(span,), end=399, boundaries=BOUNDARIES
    )
    policy = policy_from_spec("query_attention(0.2, 16, 'changed')")
    assert bool(policy.probed_runs(request, EvenProbe())) == competes
    if kind is SpanKind.MOVED and opens and not competes:
        unknown = replace(request, boundaries=None)
        assert policy.probed_runs(unknown, EvenProbe()), "without boundaries nothing is certain"


class NoProbe:
    """A probe nobody may ask."""

    def tail_attention(self):
        raise AssertionError("asked for attention")


def test_nothing_displaced_asks_for_no_probe():
    spans = (
        Span(donor_id="d", donor_start=0, target_start=9, length=200, kind=SpanKind.MOVED),
        Span(donor_id="d", donor_start=210, target_start=219, length=90, kind=SpanKind.BEHIND_EDIT),
    )
    request = RecomputeRequest(tokens=np.zeros(400, dtype=np.int32), spans=spans, end=309)
    policy = policy_from_spec("budget(span_head(8) + query_attention(0.2, 16, 'displaced'), 0.2)")
    assert policy.probed_runs(request, NoProbe()) == []


@given(requests())
def test_edit_safe_recomputes_everything_behind_an_edit(request):
    done = recomputed("edit_safe", request)
    for span in request.spans:
        inside = set(range(span.target_start, span.target_end))
        if span.kind is SpanKind.BEHIND_EDIT:
            assert inside <= done
        elif span.kind is SpanKind.PREFIX:
            assert not inside & done
        else:
            assert span.target_start in done


@given(request=requests(), sentences=st.integers(1, 3), margin=st.integers(1, 12))
def test_edit_dependents_reach_the_sentences_end_behind_every_edit(request, sentences, margin):
    request = replace(request, boundaries=BOUNDARIES)
    done = recomputed(f"edit_dependents({sentences}, {margin}, 400)", request)
    ends = np.flatnonzero(BOUNDARIES.sentence_ends(request.tokens))
    for span in request.spans:
        inside = range(span.target_start, span.target_end)
        if span.kind is not SpanKind.BEHIND_EDIT:
            assert not done & set(inside)
            continue
        later = [end for end in ends if end >= span.target_start][:sentences]
        assert span.target_start in done  # at least one token after every hole
        if len(later) == sentences:
            assert {at for at in inside if at <= later[-1] + margin} == done & set(inside)


@given(request=requests(), ratio=st.floats(0, 1))
def test_a_budget_declines_until_the_rest_is_cheap_enough(request, ratio):
    inner = recomputed("edit_dependents(2, 8) + span_head(16)", request)
    done = recomputed(f"budget(edit_dependents(2, 8) + span_head(16), {ratio})", request)
    assert inner <= done
    kept = [s for s in request.spans if not set(range(s.target_start, s.target_end)) <= done]
    spent = sum(len(done & set(range(s.target_start, s.target_end))) for s in kept)
    assert spent <= ratio * sum(span.length for span in kept)


@given(request=requests(), ratio=st.floats(0, 1), most=st.floats(0, 1))
def test_a_budget_declines_everything_where_most_would_be_computed_anyway(request, ratio, most):
    some = recomputed(f"budget(edit_dependents(2, 8) + span_head(16), {ratio})", request)
    done = recomputed(f"budget(edit_dependents(2, 8) + span_head(16), {ratio}, {most})", request)
    everything = {at for s in request.spans for at in range(s.target_start, s.target_end)}
    assert done == (everything if len(some) > most * len(everything) else some)


@given(
    request=requests(),
    ratio=st.floats(0, 1),
    inside=st.sampled_from(
        ["edit_dependents(2, 8) + query_attention(0.6)", "kv_deviation(0.3) + query_attention(0.9)"]
    ),
)
def test_a_budget_binds_what_a_probe_adds(request, ratio, inside):
    policy = policy_from_spec(f"budget({inside}, {ratio})")
    before = positions(inside_spans(policy.runs(request), request.spans))
    done = positions(all_runs(policy, request))
    kept = [s for s in request.spans if not set(range(s.target_start, s.target_end)) <= before]
    spent = sum(len(done & set(range(s.target_start, s.target_end))) for s in kept)
    assert spent <= ratio * sum(span.length for span in kept) + 1e-9


@given(requests())
def test_a_sum_recomputes_what_either_does(request):
    one, two = "span_head(5)", "query_attention(0.3)"
    both = recomputed(f"{one} + {two}", request)
    assert recomputed(one, request) <= both
    assert len(both) <= len(recomputed(one, request)) + 0.3 * sum(s.length for s in request.spans)


@given(request=requests(), ratio=st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_random_recomputes_the_asked_share_of_blocks(request, ratio):
    blocks = sum(-(-span.length // 32) for span in request.spans)
    runs = policy_from_spec(f"random({ratio})").runs(request)
    assert len(runs) == round(ratio * blocks)


@given(requests())
def test_a_probe_only_adds_to_a_plan(request):
    spans = tuple(replace(span, kind=SpanKind.BEHIND_EDIT) for span in request.spans)
    plan = Plan(namespace="n", prompt_tokens=len(request.tokens), spans=spans, end=request.end)
    policy = policy_from_spec("edit_dependents(1, 4) + query_attention(0.2)")
    first = with_policy(plan, request.tokens, policy, BOUNDARIES)
    second = probed(first, request.tokens, policy, FakeProbe(request), BOUNDARIES)
    assert first.policy == second.policy == policy.spec
    assert positions(first.recompute) <= positions(second.recompute)
    assert second.reused_tokens <= first.reused_tokens


def test_sentences_end_where_a_new_one_opens():
    tokens = np.asarray([0, 2, 3, 5, 2, 5, 1, 4, 0, 2], dtype=np.int32)  # a. C3.3 b¶a.
    assert np.flatnonzero(BOUNDARIES.sentence_ends(tokens)).tolist() == [1, 7, 9]
    assert np.flatnonzero(BOUNDARIES.paragraph_ends(tokens)).tolist() == [7]


def test_token_ids_beyond_the_vocabulary_end_nothing():
    far = np.asarray([10**6, 1], dtype=np.int32)
    assert not BOUNDARIES.sentence_ends(far)[0]


@given(
    runs=st.lists(st.tuples(st.integers(0, 120), st.integers(1, 30)), max_size=8),
    start=st.integers(0, 120),
    length=st.integers(1, 40),
)
def test_parts_inside_are_the_positions_both_hold(runs, start, length):
    merged = merge_holes(Hole(first, first + size) for first, size in runs)
    parts = list(parts_inside(merged, start, start + length))
    assert positions(parts) == positions(merged) & set(range(start, start + length))
    assert all(len(part) > 0 for part in parts)


def test_holes_outside_spans_are_dropped():
    span = Span(donor_id="d", donor_start=0, target_start=10, length=10)
    assert inside_spans([Hole(0, 12), Hole(15, 40)], [span]) == (Hole(10, 12), Hole(15, 20))


def test_depths_are_shifted_where_any_policy_inside_says_so_and_runs_are_the_policys():
    for spec, shifts in (
        ("span_head(8)", False),
        ("depth_shift(span_head(8))", True),
        ("budget(depth_shift(span_head(8)), 0.2)", True),
        ("seams(4) + depth_shift(none)", True),
        ("budget(seams(4) + none, 0.2)", False),
    ):
        policy = policy_from_spec(spec)
        assert policy.shifts_depth is shifts is shifts_depth(spec)
        assert policy_from_spec(policy.spec) == policy
    span = Span(donor_id="d", donor_start=20, target_start=900, length=600)
    plan = Plan(namespace="n", prompt_tokens=2000, spans=(span,), end=1999)
    tokens = np.zeros(2000, dtype=np.int32)
    plain, shifted = (
        with_policy(plan, tokens, policy_from_spec(spec))
        for spec in ("span_head(8)", "depth_shift(span_head(8))")
    )
    assert plain.recompute == shifted.recompute
    assert declined_without_table(plain, has_table=False) == plain
    assert declined_without_table(shifted, has_table=True) == shifted
    declined = declined_without_table(shifted, has_table=False)
    assert declined.reason is DeclineReason.UNSUPPORTED
    assert shifted.policy in declined.detail


def test_the_table_is_asked_for_exactly_where_depths_are_shifted():
    table, path = object(), Path("somewhere")
    assert drift_for(policy_from_spec("none"), table) is None
    assert drift_for(policy_from_spec("depth_shift(none)"), table) is table
    assert table_for("none", path) == table_for("none", None) == ""
    assert table_for("depth_shift(none)", path) == "somewhere"
    for ask in (
        lambda: drift_for(policy_from_spec("depth_shift(none)"), None),
        lambda: table_for("depth_shift(none)", None),
    ):
        with pytest.raises(PlanError, match="depth-drift table"):
            ask()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("unknown", "known names"),
        ("", "expected one of"),
        ("span_head(0)", "1 or more"),
        ("span_head(1, 2)", "takes \\(tokens\\)"),
        ("span_head(", "expected one of"),
        ("random(2)", "ratio"),
        ("kv_deviation(0.1, 1)", "2 or more"),
        ("query_attention(0.1, 16, 'some')", "displaced"),
        ("budget(0.1)", "expected a policy"),
        ("depth_shift(8)", "expected a policy"),
        ("budget(unknown, 0.1)", "known names"),
        ("span_head(8) - none", "expected one of"),
        ("__import__('os')", "known names"),
        ("span_head(__import__('os'))", "takes"),
        ("span_head(**{'tokens': 3})", "takes"),
    ],
)
def test_bad_specs_say_what_would_be_right(spec, said):
    with pytest.raises(SettingsError, match=said):
        policy_from_spec(spec)


def test_a_name_is_registered_once():
    with pytest.raises(SettingsError, match="twice"):
        register_policy("none")(known_policies()["none"])
