"""Mode `segmented`: reuse under a certificate, and only under one that holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from semblend.integration.loaded_model.model_identity import content_fingerprint
from semblend.kv.depth_drift import DepthDrift, table_digest
from semblend.kv.rotary_spec import RotarySpec
from semblend.kv.rotary_table import RotaryTable
from semblend.planning.certificates import depth_table, file_name
from tests.certificates import certificate_of, write
from tests.integration.models import folder_of, joined, random_tokens

DOCUMENT = random_tokens(420, seed=121)
DONOR = joined(random_tokens(50, seed=122), DOCUMENT, random_tokens(20, seed=123))
TARGET = joined(random_tokens(110, seed=124), DOCUMENT, random_tokens(33, seed=125))


def certificate(**changes):
    folder = folder_of("llama")
    config = transformers.AutoConfig.from_pretrained(folder)
    values = {
        "fingerprint": content_fingerprint(Path(folder), config),
        "policy": "span_head(24)",
        **changes,
    }
    return certificate_of(**values)


@pytest.fixture
def serve_with(engines, tmp_path, monkeypatch):
    def make(given, table=None):
        path = write(tmp_path, given)
        if table is not None:
            depth_table(path).write_bytes(table.to_bytes())
        monkeypatch.setenv("SEMBLEND_CERTIFICATE_DIR", str(tmp_path))
        engines.close()  # certificates are read when an engine starts
        return engines.make("llama", mode="segmented")

    return make


def test_a_certified_model_is_served_with_the_certificates_policy(serve_with):
    engine = serve_with(certificate())
    engine.donate(DONOR)
    answer = engine.run(TARGET, hints={"policy": "none"})
    assert answer.semblend["outcome"] == "materialised"
    assert answer.semblend["certified"] is True
    assert answer.semblend["policy"] == "span_head(24)", "a request cannot choose a cheaper one"
    assert answer.semblend["recomputed_tokens"] == 24


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"expires": "2020-01-01T00:00:00+00:00"}, "certificate_expired"),
        ({"dtype": "bfloat16"}, "no_certificate"),
        ({"fingerprint": "0" * 32}, "no_certificate"),
        ({"versions": {"semblend": "0.0.1"}}, "no_certificate"),
    ],
    ids=["expired", "another number format", "other weights", "another release"],
)
def test_a_certificate_that_does_not_hold_is_discovery_only(serve_with, changes, reason):
    engine = serve_with(certificate(**changes))
    engine.donate(DONOR)
    answer = engine.run(TARGET)
    assert answer.semblend["outcome"] == "discovery_only"
    assert answer.semblend["reason"] == reason
    assert answer.cached_tokens == 0


def test_a_prompt_kept_while_the_clock_was_wrong_is_a_whole_donor(serve_with, monkeypatch):
    """A clock jumps past the certificate's end and back: K/V is kept all the while."""
    engine = serve_with(certificate())
    with monkeypatch.context() as wrong_clock:
        wrong_clock.setattr("semblend.pipeline.clock_jump_s", lambda: 1e10)
        engine.donate(DONOR)
        assert engine.run(TARGET).semblend["reason"] == "certificate_expired"
    engine.forget_prefixes()
    assert engine.run(TARGET[1:]).semblend["outcome"] == "materialised"


def test_an_altered_certificate_is_none(engines, tmp_path, monkeypatch):
    given = certificate(policy="seams(7)")
    text = given.to_json().replace("seams(7)", "none")
    (tmp_path / file_name(given)).write_text(text)
    monkeypatch.setenv("SEMBLEND_CERTIFICATE_DIR", str(tmp_path))
    engines.close()
    engine = engines.make("llama", mode="segmented")
    engine.donate(DONOR)
    assert engine.run(TARGET).semblend["reason"] == "no_certificate"


def test_moved_k_v_is_shifted_to_its_new_depth_by_the_certificates_table(serve_with):
    """To the number what the embedded engine does; a passage that hardly moved stays as it is."""
    config = transformers.AutoConfig.from_pretrained(folder_of("llama"))
    shape = (config.num_hidden_layers, 2, 3, config.num_key_value_heads, config.head_dim)
    generator = torch.Generator().manual_seed(3)
    drift = DepthDrift(
        depths=torch.tensor([10.0, 300.0, 900.0]), means=torch.randn(shape, generator=generator)
    )
    digest = table_digest(drift.to_bytes())
    deep = joined(random_tokens(400, seed=126), DOCUMENT, random_tokens(33, seed=125))
    found = {}
    for policy in ("none", "depth_shift(none)"):
        engine = serve_with(certificate(policy=policy, data={"depth_table": digest}), drift)
        engine.donate(DONOR)
        for name, target, start in (("far", deep, 400), ("near", TARGET, 110)):
            warm = engine.run(target, hints={"capture": False})
            assert (warm.semblend["outcome"], warm.semblend["policy"]) == ("materialised", policy)
            found[policy, name] = engine.kv(warm, start, start + len(DOCUMENT)).float()
    move = drift.move(
        source_start=50,
        target_start=400,
        tokens=len(DOCUMENT),
        rotary=RotaryTable.from_spec(RotarySpec.from_config(config)),
    )
    for layer, (keys, values) in enumerate(found["none", "far"]):
        shifted = found["depth_shift(none)", "far"][layer]
        torch.testing.assert_close(shifted[0], move.keys(layer, keys), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(shifted[1], move.values(layer, values), atol=1e-4, rtol=1e-4)
        assert (shifted[0] - keys).abs().max() > 0.1
    assert torch.equal(found["none", "near"], found["depth_shift(none)", "near"])


def test_a_certificate_whose_table_is_gone_or_another_is_none(serve_with):
    config = transformers.AutoConfig.from_pretrained(folder_of("llama"))
    shape = (config.num_hidden_layers, 2, 2, config.num_key_value_heads, config.head_dim)
    drift = DepthDrift(depths=torch.tensor([10.0, 900.0]), means=torch.zeros(shape))
    given = certificate(policy="depth_shift(none)", data={"depth_table": "0" * 64})
    for table in (None, drift):
        engine = serve_with(given, table)
        engine.donate(DONOR)
        answer = engine.run(TARGET)
        assert answer.semblend["outcome"] == "discovery_only"
        assert answer.semblend["reason"] == "no_certificate"


def test_the_fingerprint_is_the_embedded_engines(tmp_path):
    """Certificates are measured with the embedded engine and used here."""
    from semblend.engine.model import load_model
    from tests.integration.models import REFERENCE

    config = transformers.AutoConfig.from_pretrained(REFERENCE)
    loaded = load_model(str(REFERENCE), device="cpu")
    assert content_fingerprint(REFERENCE, config) == loaded.fingerprint


def test_the_bundled_model_is_served_under_its_shipped_certificate(engines, monkeypatch):
    """Moved and edited facts: answers are cold's, and no donor's fact gets through."""
    from transformers import AutoTokenizer

    from semblend.quality.measure import states
    from semblend.quality.suite import Cell
    from tests.integration.models import REFERENCE
    from tests.integration.quality_items import items_of

    monkeypatch.delenv("SEMBLEND_CERTIFICATE_DIR", raising=False)
    engines.close()
    size = {"max_model_len": 4096, "kv_cache_memory_bytes": 256 << 20}
    engine = engines.make("reference", mode="segmented", engine=size)
    assert engine.scheduler.setup.certified
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    cells = [
        Cell(workload=name, items=2, specs=(), lengths=(1800,))
        for name in ("reordered", "edited_exchanged")
    ]
    outcomes = []
    for item in items_of(cells, 5, tokenizer):
        salt = item.case.case_id
        cold = said(tokenizer, engine.cold(item.tokens, max_tokens=16))
        for donor in item.donors:
            engine.run(donor, salt=salt, hints={"reuse": False}, max_tokens=1)
        warm = engine.run(item.tokens, salt=salt, max_tokens=16)
        answer = said(tokenizer, warm)
        outcomes.append(warm.semblend["outcome"])
        if outcomes[-1] == "materialised":
            assert warm.semblend["certified"] is True
        assert states(answer, (item.case.answer,)) == states(cold, (item.case.answer,))
        assert not states(answer, item.case.leaked)
    # The last is edited in so many places that nothing of it is worth keeping.
    assert outcomes == ["materialised", "materialised", "materialised", "declined"]


def said(tokenizer, answer):
    """An answer up to where the model ends its turn."""
    return tokenizer.decode(answer.tokens).split(tokenizer.eos_token)[0]
