"""A certificate holds across releases because what it certified does not change behind its back.

Certificates are bound to `MEASUREMENT_VERSION`, not to a release. That is safe as long as a
certified policy still recomputes what it did when it was measured; here is what it recomputed.
"""

import hashlib
import json
import random
from dataclasses import replace

import numpy as np

from semblend.core.plan import Span, SpanKind
from semblend.planning.boundaries import Boundaries
from semblend.planning.certificates import MEASUREMENT_VERSION, SHIPPED, Certificate
from semblend.planning.policies.base import RecomputeRequest, policy_from_spec
from semblend.planning.recompute import inside_spans

BOUNDARIES = Boundaries.from_texts(["a", " b", ".", " C", "\n\n", "3", " d"])
REQUESTS = 80
RECORDED = {1: "8f233e52d3ec696a"}
"""By measurement version: the hash of every run the certified policies chose on these requests."""


class Scores:
    """A probe without a model."""

    def __init__(self, roll, size):
        self._scores = np.array([roll.random() for _ in range(size)])

    def tail_attention(self):
        return self._scores

    def deviation(self, layers):
        return self._scores[::-1].copy()

    def edit_attention(self, layers):
        return self._scores**2


def request_of(roll):
    """Some spans of every kind. By `random()` alone: its numbers are the same everywhere."""

    def below(least, most):
        return least + int(roll.random() * (most - least))

    position, spans = 0, []
    for number in range(below(1, 7)):
        position += below(0, 40) if number else below(0, 2) * 20
        first, length = position == 0, below(1, 220)
        kind = SpanKind.PREFIX if first else list(SpanKind)[1 + below(0, len(SpanKind) - 1)]
        start = 0 if first else below(0, 400)
        spans.append(
            Span(
                donor_id=f"d{below(0, 3)}",
                donor_start=start,
                target_start=position,
                length=length,
                kind=kind,
            )
        )
        position += length
    tokens = np.array([below(0, 7) for _ in range(position + 1)], dtype=np.int32)
    return RecomputeRequest(tokens=tokens, spans=tuple(spans), end=position, boundaries=BOUNDARIES)


def chosen_runs(policy, seed):
    roll = random.Random(seed)
    request = request_of(roll)
    runs = inside_spans(policy.runs(request), request.spans)
    chosen = [(run.start, run.end) for run in runs]
    if policy.dynamic:
        more = policy.probed_runs(replace(request, taken=runs), Scores(roll, len(request.tokens)))
        chosen += [(run.start, run.end) for run in more]
    return [[int(start), int(end)] for start, end in chosen]


def test_certified_policies_recompute_what_they_recomputed_when_they_were_measured():
    files = sorted(SHIPPED.glob("*.json"))
    specs = sorted({Certificate.from_json(file.read_text("utf-8")).policy for file in files})
    chosen = {
        spec: [chosen_runs(policy_from_spec(spec), seed) for seed in range(REQUESTS)]
        for spec in specs
    }
    assert all(sum(map(bool, runs)) > REQUESTS / 2 for runs in chosen.values())
    found = hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:16]
    assert RECORDED[MEASUREMENT_VERSION] == found, (
        "a certified policy recomputes something else than when it was measured: undo that, or "
        "raise MEASUREMENT_VERSION and measure the shipped certificates again"
    )
