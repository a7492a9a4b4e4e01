"""Promise: an SGLang that reuse was not proven with starts, and answers as it does without us.

What cannot be loaded is discovered; where the tree is not as we know it, SGLang makes its own. One
line says so. SEMBLEND_STRICT_START refuses by name instead.
"""

from __future__ import annotations

import pytest

from semblend.core.errors import UnsupportedModelError
from semblend.integration.sglang import radix_patcher
from semblend.integration.sglang.launcher import without_backend
from tests.integration.sglang import changes
from tests.integration.sglang.engines import Engine, SchedulerDiedError
from tests.integration.sglang.prompts import DONOR, TARGET

DISCOVERS = {
    "unknown_version": "SGLang 0.9.0",
    "missing_hook": "the forward hook is not installed",
}
NOTHING = {
    "missing_member": "MatchResult has no host_hit_length",
    "unreadable_model": "no hidden_size",
}


@pytest.fixture(scope="module")
def plain_answers(make_engine):
    """What SGLang answers without us, by model."""
    kept = {}

    def answers(model="llama"):
        if model not in kept:
            engine = make_engine(model, server={"radix_cache_backend": None})
            kept[model] = [engine.run(prompt).tokens for prompt in (DONOR, TARGET)]
        return kept[model]

    return answers


def started(make_engine, plain_answers, model="llama", **server):
    """An engine that answers as a plain one, and its one line."""
    expected = plain_answers(model)
    engine = make_engine(model, server=server)
    found = [engine.run(prompt) for prompt in (DONOR, TARGET)]
    assert [answer.tokens for answer in found] == expected
    assert all(answer.semblend.get("reused_tokens", 0) == 0 for answer in found)
    (line,) = engine.call(changes.said)
    return engine, found, line


@pytest.mark.parametrize("change", DISCOVERS)
def test_what_cannot_be_loaded_is_discovered(make_engine, plain_answers, change):
    engine, found, line = started(make_engine, plain_answers, before=change)
    assert engine.call(changes.tree_of) == "SemBlendRadixCache"
    if change != "missing_hook":  # the hook also carries reports
        assert found[1].semblend["outcome"] == "discovery_only"
    assert line.startswith("SemBlend runs as discovery_only")
    assert DISCOVERS[change] in line


def test_an_unsupported_model_and_feature_are_discovered(make_engine, plain_answers):
    _, found, line = started(
        make_engine, plain_answers, "llama-dynamic", before="listen", enable_mixed_chunk=True
    )
    assert found[1].semblend["outcome"] == "discovery_only"
    assert "mixed chunked prefill" in line
    assert "DynamicNTKScalingRotaryEmbedding" in line


@pytest.mark.parametrize("change", NOTHING)
def test_an_interface_that_is_not_as_known_is_left_to_sglang(make_engine, plain_answers, change):
    _, found, line = started(make_engine, plain_answers, before=change)
    assert all(answer.semblend == {} for answer in found)
    assert line.startswith("SemBlend runs as off")
    assert NOTHING[change] in line


@pytest.mark.parametrize("change", [*DISCOVERS, *NOTHING])
def test_strictly_it_does_not_start(monkeypatch, change):
    monkeypatch.setenv("SEMBLEND_STRICT_START", "1")
    with pytest.raises(SchedulerDiedError) as stopped:
        Engine("llama", server={"before": change})
    assert {**DISCOVERS, **NOTHING}[change] in str(stopped.value)


def test_an_sglang_that_takes_no_backends_starts_without_ours(monkeypatch, caplog):
    monkeypatch.setattr(radix_patcher, "problems", lambda: ("registry has no such thing",))
    assert radix_patcher.patch_radix_cache() == ""
    assert "registry has no such thing" in caplog.text
    monkeypatch.setenv("SEMBLEND_STRICT_START", "1")
    with pytest.raises(UnsupportedModelError, match="registry has no such thing"):
        radix_patcher.patch_radix_cache()


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (["--a", "1", "--radix-cache-backend", "semblend"], ["--a", "1"]),
        (["--radix-cache-backend=semblend", "--a", "1"], ["--a", "1"]),
        (["--a", "1"], ["--a", "1"]),
    ],
)
def test_the_flag_that_such_an_sglang_would_refuse_is_left_out(given, left):
    assert without_backend(given) == left
