"""Which of a plan's K/V is exact, against an oracle that follows K/V token by token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.plan import Hole, Plan, Span, SpanKind
from semblend.discovery.runs import DonorRun
from semblend.planning.edits import classify


@st.composite
def reuses(draw: st.DrawFn) -> tuple[list[int], dict[str, list[int]], Plan]:
    """A prompt, donors that share runs with it, and a plan over runs that are really equal."""
    token = st.integers(0, 2)
    target = draw(st.lists(token, min_size=10, max_size=24))
    donors = {
        # A beginning of the prompt, then anything: exact prefixes are as common as moved runs.
        f"d{number}": target[: draw(st.integers(0, len(target)))]
        + draw(st.lists(token, min_size=1, max_size=16))
        for number in range(draw(st.integers(1, 3)))
    }
    end = draw(st.integers(len(target) // 2, len(target) - 1))
    exact = draw(st.integers(0, end // 3))
    runs: list[DonorRun] = []
    position = exact
    while position < end:
        position += draw(st.integers(0, 2))
        equal = [
            (donor_id, start)
            for donor_id, tokens in donors.items()
            for start in range(len(tokens))
            if position < end and tokens[start] == target[position]
        ]
        if not equal:
            position += 1
            continue
        staying = [(donor_id, start) for donor_id, start in equal if start == position]
        donor_id, start = draw(
            st.sampled_from(staying if staying and draw(st.booleans()) else equal)
        )
        length = 0
        while (
            position + length < end
            and start + length < len(donors[donor_id])
            and donors[donor_id][start + length] == target[position + length]
        ):
            length += 1
        length = draw(st.sampled_from((1, (length + 1) // 2, length)))
        runs.append(
            DonorRun(donor_id=donor_id, donor_start=start, target_start=position, length=length)
        )
        position += length
    spans = classify(
        runs,
        target=np.array(target, dtype=np.int32),
        donor_tokens=lambda donor_id: np.array(donors[donor_id], dtype=np.int32),
        window=4,
        prefixes={donor_id: _shared(tokens, target) for donor_id, tokens in donors.items()},
    )
    recompute: list[Hole] = []
    for span in spans:
        if draw(st.booleans()):
            first = draw(st.integers(span.target_start, span.target_end - 1))
            last = draw(st.integers(first + 1, span.target_end))
            recompute.append(Hole(first, last))
    plan = Plan(
        namespace="n",
        prompt_tokens=len(target),
        spans=tuple(spans),
        recompute=tuple(recompute),
        end=end,
        exact_tokens=exact,
    )
    return target, donors, plan


def _shared(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def first_wrong(target: list[int], donors: dict[str, list[int]], plan: Plan) -> int | None:
    """First position whose K/V differs from a cold prefill's, where K/V is all it depends on.

    K/V of a position is modelled as the tokens it was computed from and where it stands:
    what a cold prefill has there, what the donor had, or what was read when it was computed.
    """
    cold = [(position, tuple(target[: position + 1])) for position in range(len(target))]
    copied: dict[int, tuple[str, int]] = {}
    for span in plan.spans:
        for offset in range(span.length):
            copied[span.target_start + offset] = (span.donor_id, span.donor_start + offset)
    for run in plan.recompute:
        for position in range(run.start, run.end):
            copied.pop(position, None)
    right: list[bool] = []
    for position in range(len(target)):
        if position < plan.exact_tokens:
            right.append(True)
        elif position in copied:
            donor_id, there = copied[position]
            donor = donors[donor_id]
            right.append((there, tuple(donor[: there + 1])) == cold[position])
        else:
            right.append(all(right))
    return None if all(right) else right.index(False)


@given(reuses())
def test_exact_is_what_equals_a_cold_prefill(reuse) -> None:
    assert reuse[2].first_approximate_token == first_wrong(*reuse)


@given(reuses())
def test_a_prefix_is_exact_wherever_it_is_cut(reuse) -> None:
    target, donors, plan = reuse
    for span in plan.copies:
        if span.is_exact:
            donor = donors[span.donor_id]
            assert donor[: span.donor_end] == target[: span.target_end]


@pytest.mark.parametrize(
    ("kind", "delta", "exact"),
    [
        (SpanKind.PREFIX, 0, True),
        (SpanKind.PREFIX, 3, False),
        (SpanKind.MOVED, 0, False),
        (SpanKind.BEHIND_EDIT, 0, False),
    ],
)
def test_only_a_prefix_that_did_not_move_is_exact(kind: SpanKind, delta: int, exact: bool) -> None:
    span = Span(donor_id="d", donor_start=2, target_start=2 + delta, length=4, kind=kind)
    plan = Plan(namespace="n", prompt_tokens=20, spans=(span,), end=12)
    assert span.is_exact is exact
    assert plan.first_approximate_token == (None if exact else span.target_start)


def test_what_is_recomputed_taints_nothing() -> None:
    moved = Span(donor_id="d", donor_start=0, target_start=4, length=8)
    plan = Plan(namespace="n", prompt_tokens=20, spans=(moved,), end=12, recompute=(Hole(4, 6),))
    assert plan.first_approximate_token == 6
    whole = Plan(namespace="n", prompt_tokens=20, spans=(moved,), end=12, recompute=(Hole(4, 12),))
    assert whole.first_approximate_token is None
