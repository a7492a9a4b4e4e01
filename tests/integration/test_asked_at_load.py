"""A certificate holds for the quantisation, K/V format and drafter it was measured with only."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from transformers import AutoConfig

from semblend.core.settings import Settings
from semblend.integration.loaded_model.model_certificates import standing_for
from semblend.integration.modes import Mode
from semblend.integration.scheduler.setup import may_load
from semblend.integration.vllm.namespaces import asked_at_load
from tests.integration.models import REFERENCE

PLAIN = {"quantization": "none", "kv_format": "none", "speculation": "none"}


def config(*, cache="auto", quantization=None, method=None):
    """A VllmConfig, as far as it is asked."""
    return SimpleNamespace(
        model_config=SimpleNamespace(
            dtype="torch.float32", quantization=quantization, hf_config=SimpleNamespace()
        ),
        cache_config=SimpleNamespace(cache_dtype=cache),
        speculative_config=None if method is None else SimpleNamespace(method=method),
    )


def test_an_engine_that_adds_nothing_asks_for_nothing_added():
    assert asked_at_load(config()) == PLAIN
    assert asked_at_load(config(cache="float32")) == PLAIN


@pytest.mark.parametrize(
    ("changed", "field", "said"),
    [
        ({"cache": "fp8"}, "kv_format", "fp8_e4m3"),
        ({"quantization": "fp8"}, "quantization", "fp8:"),
    ],
)
def test_the_shipped_certificate_does_not_hold_for_an_engine_that_adds_something(
    changed, field, said, monkeypatch
):
    monkeypatch.delenv("SEMBLEND_CERTIFICATE_DIR", raising=False)
    settings = Settings(embedder="none")

    def standing(asked):
        return standing_for(
            Mode.SEGMENTED,
            str(REFERENCE),
            AutoConfig.from_pretrained(REFERENCE),
            dtype="float32",
            settings=settings,
            quantization=asked["quantization"],
            kv_format=asked["kv_format"],
            speculation=asked["speculation"],
        )

    assert may_load(Mode.SEGMENTED, settings, standing(PLAIN))
    asked = asked_at_load(config(**changed))
    assert asked == {**PLAIN, field: asked[field]}
    assert asked[field].startswith(said)
    refused = standing(asked)
    assert not may_load(Mode.SEGMENTED, settings, refused)
    assert asked[field] in refused.detail
