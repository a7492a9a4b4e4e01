"""Mode `segmented`: reuse under a certificate, and only under one that holds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import transformers

from semblend.integration.model_identity import content_fingerprint
from semblend.planning.certificates import Certificate, file_name, release
from tests.integration.models import folder_of, joined, random_tokens

DOCUMENT = random_tokens(420, seed=121)
DONOR = joined(random_tokens(50, seed=122), DOCUMENT, random_tokens(20, seed=123))
TARGET = joined(random_tokens(110, seed=124), DOCUMENT, random_tokens(33, seed=125))


def certificate(**changes):
    folder = folder_of("llama")
    config = transformers.AutoConfig.from_pretrained(folder)
    now = datetime.now(UTC)
    values = {
        "model": "llama",
        "fingerprint": content_fingerprint(Path(folder), config),
        "dtype": "float32",
        "policy": "span_head(24)",
        "bound": {},
        "figures": {},
        "data": {},
        "versions": {"semblend": release()},
        "created": now.isoformat(),
        "expires": (now + timedelta(days=1)).isoformat(),
    }
    return Certificate(**{**values, **changes}).signed()


@pytest.fixture
def serve_with(engines, tmp_path, monkeypatch):
    def make(given):
        (tmp_path / file_name(given)).write_text(given.to_json())
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


def test_an_altered_certificate_is_none(engines, tmp_path, monkeypatch):
    given = certificate(policy="seams(7)")
    text = given.to_json().replace("seams(7)", "none")
    (tmp_path / file_name(given)).write_text(text)
    monkeypatch.setenv("SEMBLEND_CERTIFICATE_DIR", str(tmp_path))
    engines.close()
    engine = engines.make("llama", mode="segmented")
    engine.donate(DONOR)
    assert engine.run(TARGET).semblend["reason"] == "no_certificate"


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
    from semblend.quality.suite import Cell, items_of
    from tests.integration.models import REFERENCE

    monkeypatch.delenv("SEMBLEND_CERTIFICATE_DIR", raising=False)
    engines.close()
    size = {"max_model_len": 4096, "kv_cache_memory_bytes": 256 << 20}
    engine = engines.make("reference", mode="segmented", engine=size)
    assert engine.scheduler.setup.certified
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    cells = [
        Cell(workload=name, items=2, specs=(), lengths=(700,))
        for name in ("reordered", "edited_exchanged")
    ]
    for item in items_of(cells, 5, tokenizer):
        salt = item.case.case_id
        cold = said(tokenizer, engine.cold(item.tokens, max_tokens=16))
        for donor in item.donors:
            engine.run(donor, salt=salt, hints={"reuse": False}, max_tokens=1)
        warm = engine.run(item.tokens, salt=salt, max_tokens=16)
        answer = said(tokenizer, warm)
        assert warm.semblend["outcome"] == "materialised"
        assert warm.semblend["certified"] is True
        assert states(answer, (item.case.answer,)) == states(cold, (item.case.answer,))
        assert not states(answer, item.case.leaked)


def said(tokenizer, answer):
    """An answer up to where the model ends its turn."""
    return tokenizer.decode(answer.tokens).split(tokenizer.eos_token)[0]
