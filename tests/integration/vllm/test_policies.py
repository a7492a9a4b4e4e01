"""Every recompute policy runs in vLLM, but for those that need a cold prefill to choose."""

from __future__ import annotations

import re

import pytest

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
