"""The bundled model in SGLang under the certificate it is shipped with."""

from __future__ import annotations

import json

from semblend.planning.certificates import SHIPPED
from semblend.planning.policies.base import policy_from_spec
from semblend.quality.measure import states
from semblend.quality.suite import Cell
from tests.integration.models import REFERENCE
from tests.integration.quality_items import items_of
from tests.integration.sglang import probes


def test_the_bundled_model_is_served_under_its_shipped_certificate(make_engine, monkeypatch):
    """Moved and edited facts: answers are cold's, and no donor's fact gets through."""
    from transformers import AutoTokenizer

    monkeypatch.delenv("SEMBLEND_CERTIFICATE_DIR", raising=False)
    engine = make_engine(
        "reference",
        mode="segmented",
        server={
            "context_length": 4096,
            "max_total_tokens": 40_000,
            "skip_tokenizer_init": False,
        },
    )
    files = SHIPPED.glob("*.json")
    shipped = [policy_from_spec(json.loads(file.read_text())["policy"]) for file in files]
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
            engine.run(donor, cache_salt=salt, hints={"reuse": False}, max_tokens=1)
        engine.call(probes.wait_for_donors)
        warm = engine.run(item.tokens, cache_salt=salt, max_tokens=16)
        answer = said(tokenizer, warm)
        outcomes.append(warm.semblend["outcome"])
        if outcomes[-1] == "materialised":
            assert warm.semblend["certified"] is True
            assert policy_from_spec(warm.semblend["policy"]) in shipped
        assert states(answer, (item.case.answer,)) == states(cold, (item.case.answer,))
        assert not states(answer, item.case.leaked)
    # The last is edited in so many places that nothing of it is worth keeping.
    assert outcomes == ["materialised", "materialised", "materialised", "declined"]
    engine.assert_no_leak()


def said(tokenizer, answer):
    """An answer up to where the model ends its turn."""
    return tokenizer.decode(answer.tokens).split(tokenizer.eos_token)[0]
