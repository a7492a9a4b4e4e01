"""The adapter's parts that need no SGLang: provider, options, passes, names, launcher."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.errors import SettingsError
from semblend.core.namespace import Namespace
from semblend.core.plan import Hole
from semblend.core.settings import Settings
from semblend.integration.isolation import by_extra_key
from semblend.integration.option_values import options_table
from semblend.integration.provider import SemBlendProvider
from semblend.integration.sglang.launcher import prepare
from semblend.integration.sglang.options import VARIABLE, BackendOptions
from semblend.integration.sglang.versions import VERSIONS
from semblend.integration.worker.policy_probe import asked_together
from semblend.integration.worker.sequences import (
    PassLimits,
    VirtualSequence,
    block_table,
    in_turn,
)

ROOT = Path(__file__).parents[3]
DOCUMENT = list(range(1000, 1500))
SETTINGS = Settings(embedder="none", allow_uncertified=True, recompute_policy="none")


@st.composite
def rows_of_holes(draw):
    rows = {}
    for row in range(draw(st.integers(1, 4))):
        edges = sorted(draw(st.sets(st.integers(0, 200), min_size=2, max_size=12)))
        pairs = zip(edges[::2], edges[1::2], strict=False)
        rows[row] = [Hole(start, end) for start, end in pairs]
    return rows


def laid_out(row: int, runs: list[Hole]) -> list[VirtualSequence]:
    blocks, tokens = block_table((row,)), np.arange(201, dtype=np.int32)
    return [
        VirtualSequence(tokens=tokens, start=run.start, end=run.end, blocks=blocks)
        for run in sorted(runs)
    ]


def test_one_hole_a_pass_still_computes_holes_of_several_requests_together():
    rows = [laid_out(row, [Hole(0, 3), Hole(5, 8)]) for row in range(3)]
    limits = PassLimits(sequences=8, tokens=100, together=False)
    assert [len(one) for one in limits.forwards(in_turn(rows))] == [3, 3]


@given(
    tails=st.lists(st.integers(1, 40), max_size=12),
    sequences=st.integers(1, 5),
    tokens=st.integers(1, 60),
)
def test_tails_that_fit_one_forward_are_asked_together(tails, sequences, tokens):
    limits = PassLimits(sequences=sequences, tokens=tokens)
    groups = asked_together([SimpleNamespace(tail=[0] * tail) for tail in tails], limits)
    assert [len(probe.tail) for group in groups for probe in group] == tails
    for group, after in itertools.zip_longest(groups, groups[1:]):
        size = sum(len(probe.tail) for probe in group)
        assert len(group) == 1 or (size <= tokens and len(group) <= sequences)
        if after is not None:
            assert len(group) == sequences or size + len(after[0].tail) > tokens


@given(
    holes=rows_of_holes(),
    sequences=st.integers(1, 5),
    tokens=st.integers(1, 60),
    many=st.booleans(),
)
def test_passes_compute_every_hole_once_in_order_and_within_limits(holes, sequences, tokens, many):
    limits = PassLimits(sequences=sequences, tokens=tokens, together=many)
    computed: dict[int, list[int]] = {row: [] for row in holes}
    for one in limits.forwards(in_turn([laid_out(row, runs) for row, runs in holes.items()])):
        assert 0 < len(one) <= sequences
        assert sum(map(len, one)) <= tokens
        rows = [int(item.blocks[0]) for item in one]
        assert many or len(rows) == len(set(rows))
        for item, row in zip(one, rows, strict=True):
            computed[row] += range(item.start, item.end)
    for row, runs in holes.items():
        assert computed[row] == [p for run in sorted(runs) for p in range(run.start, run.end)]


def test_the_provider_works_alone():
    provider = SemBlendProvider(Namespace.of(model="m"), SETTINGS)
    prompt = [9] * 40 + DOCUMENT + [7, 8]
    record = provider.register_donor([1, 2, 3, *DOCUMENT], request_id="first")
    assert record is not None
    assert provider.register_donor([1, 2, 3, *DOCUMENT], request_id="again") is None
    assert provider.match(prompt).donor_ids == (record.donor_id,)
    assert provider.stats().donors == 1
    provider.forget(record.donor_id)
    assert not provider.match(prompt).spans
    assert provider.register_donor([1, 2, 3, *DOCUMENT], request_id="again") is not None
    provider.clear()
    assert provider.stats().donors == 0


def test_the_providers_donors_stay_in_their_namespace():
    provider = SemBlendProvider(Namespace.of(model="m"), SETTINGS)
    provider.register_donor(DOCUMENT, request_id="a", extra_key="x", cache_salt="s")
    prompt = [9] * 40 + DOCUMENT + [7]
    for extra_key, cache_salt in ((None, None), ("x", None), (None, "s"), ("s", "x"), ("xs", "")):
        assert not provider.match(prompt, extra_key=extra_key, cache_salt=cache_salt).spans
    assert provider.match(prompt, extra_key="x", cache_salt="s").spans
    assert by_extra_key("x", "s") != by_extra_key("xs", None)


def test_the_provider_tells_of_donors_by_meaning_when_given_text():
    settings = Settings(embedder="jaccard", allow_uncertified=True, min_similarity=0.3)
    provider = SemBlendProvider(Namespace.of(model="m"), settings)
    text = "the lighthouse keeper of Varn trims the lamps at dusk and sleeps at dawn " * 8
    provider.register_donor(DOCUMENT, request_id="a", text=text)
    assert provider.pipeline.wait_until_learned()
    plan = provider.match(list(range(3000, 3400)), text=text + "in winter")
    assert not plan.spans, "meaning is evidence, never a reason to reuse"
    assert plan.evidence.similar_donor_id == "a#1"
    provider.close()


def test_donors_are_whole_pages_and_regions_end_on_them():
    provider = SemBlendProvider(Namespace.of(model="m"), SETTINGS, page_size=16)
    record = provider.register_donor([*DOCUMENT, 5], request_id="a")
    assert record is not None
    assert len(record.tokens) % 16 == 0
    plan = provider.match([9] * 41 + DOCUMENT + [7])
    assert plan.spans
    assert plan.end % 16 == 0


def test_every_option_is_documented_as_it_is():
    assert options_table(BackendOptions) in (ROOT / "docs" / "sglang.md").read_text(
        encoding="utf-8"
    )


def test_unknown_and_wrong_options_are_named():
    with pytest.raises(SettingsError, match="did you mean mode"):
        BackendOptions.from_env({VARIABLE: '{"mod": "segmented"}'})
    with pytest.raises(SettingsError, match="min_prompt_tokens"):
        BackendOptions.from_mapping({"min_prompt_tokens": 0})
    with pytest.raises(SettingsError, match="JSON"):
        BackendOptions.from_env({VARIABLE: "mode=segmented"})


def test_the_scheduler_never_embeds():
    options = BackendOptions.from_env({})
    settings = options.settings({"SEMBLEND_EMBEDDER": "minilm"})
    assert settings.embedder.value == "none"
    assert not settings.allow_uncertified, "and loads nothing without a certificate by default"


def test_the_launcher_sets_the_backend_and_passes_the_rest_on():
    argv, config = prepare(
        ["--semblend-mode", "discovery_only", "--model-path", "m", "--port", "1", "--new-flag"], {}
    )
    assert argv[:5] == ["--model-path", "m", "--port", "1", "--new-flag"]
    assert argv[5:] == ["--radix-cache-backend", "semblend"]
    assert json.loads(config) == {"mode": "discovery_only"}


def test_the_launcher_keeps_what_the_environment_says_and_refuses_other_backends():
    _, config = prepare(["--model-path", "m"], {VARIABLE: '{"tenant": "t"}'})
    assert json.loads(config) == {"tenant": "t"}
    with pytest.raises(SettingsError, match="radix-cache-backend"):
        prepare(["--radix-cache-backend", "flexkv"], {})
    with pytest.raises(SettingsError, match="unknown key"):
        prepare(["--semblend-config", '{"nothing": 1}'], {})


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        ("0.5.23", True),
        ("0.5.22", True),
        ("0.5.21", False),
        ("0.5.23.post1", False),
        ("0.6.0", False),
    ],
)
def test_only_known_versions_are_served(version, supported):
    assert VERSIONS.judge(version).supported is supported
