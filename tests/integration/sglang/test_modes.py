"""Without a certificate nothing is loaded; with one, under its policy. What is unknown stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from semblend.kv.fingerprint import weights_fingerprint
from tests.certificates import certificate_of, write
from tests.integration.models import folder_of, plain_model
from tests.integration.sglang import probes
from tests.integration.sglang.engines import Engine, SchedulerDiedError
from tests.integration.sglang.prompts import DONOR, TARGET


def test_without_a_certificate_spans_are_found_and_not_loaded(make_engine):
    engine = make_engine("llama", mode="segmented")
    cold = engine.cold(TARGET)
    engine.donate(DONOR)
    answer = engine.run(TARGET)
    assert answer.semblend["outcome"] == "discovery_only"
    assert answer.semblend["reason"] == "no_certificate"
    assert (answer.cached_tokens, answer.tokens) == (0, cold.tokens)
    assert engine.call(probes.donors) == 3, "and what was computed exactly is known"


def test_a_certificate_lets_spans_be_loaded_under_its_policy(make_engine, tmp_path, monkeypatch):
    model = plain_model("llama")
    fingerprint = weights_fingerprint(model, model.config, Path(folder_of("llama")))
    write(tmp_path, certificate_of(fingerprint, policy="span_head(16)"))
    monkeypatch.setenv("SEMBLEND_CERTIFICATE_DIR", str(tmp_path))
    engine = make_engine("llama", mode="segmented", recompute_policy="all")
    engine.donate(DONOR)
    answer = engine.run(TARGET)
    assert answer.semblend["outcome"] == "materialised"
    assert answer.semblend["certified"] is True
    assert answer.semblend["policy"] == "span_head(16)"
    assert answer.semblend["recomputed_tokens"] == 16


def test_patch_radix_cache_is_enough(make_engine):
    engine = make_engine("llama", server={"radix_cache_backend": None, "patched": True})
    engine.donate(DONOR)
    assert engine.run(TARGET).semblend["outcome"] == "materialised"


def test_an_engine_that_cannot_be_served_does_not_start_strictly_and_says_why(monkeypatch):
    monkeypatch.setenv("SEMBLEND_STRICT_START", "1")
    with pytest.raises(SchedulerDiedError) as stopped:
        Engine("llama-dynamic", server={"enable_mixed_chunk": True})
    said = str(stopped.value)
    assert "UnsupportedEngineError" in said
    assert "mixed chunked prefill" in said
    assert "DynamicNTKScalingRotaryEmbedding" in said
