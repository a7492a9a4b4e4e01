"""How weights are quantised, by name: what keeps donors apart, and what certificates ask."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from semblend.integration.loaded_model.model_identity import added_quantization, quantization_name
from semblend.integration.sglang import namespaces

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}


def test_plain_weights_have_no_quantisation():
    assert quantization_name(None) == added_quantization(None) == "none"


@pytest.mark.parametrize(
    "other",
    [
        {"method": None},
        {"method": "awq_marlin", "stored": AWQ},
        {"method": "awq", "stored": {**AWQ, "group_size": 64}},
        {"method": "awq", "stored": AWQ, "told": {"ignore": ["lm_head"]}},
        {"method": None, "stored": AWQ},
    ],
)
def test_whatever_decides_the_numbers_is_in_the_name(other):
    assert quantization_name("awq", stored=AWQ) != quantization_name(**other)


def test_the_order_of_a_configuration_is_not():
    backwards = dict(reversed(AWQ.items()))
    assert quantization_name("awq", stored=AWQ) == quantization_name("awq", stored=backwards)


def test_weights_stored_quantised_are_used_as_stored_and_others_are_changed():
    assert added_quantization("awq", stored=AWQ) == "none"
    assert added_quantization("fp8") != "none"
    assert added_quantization("awq", stored=AWQ, told={"ignore": ["lm_head"]}) != "none"


def test_what_sglang_does_to_plain_weights_is_seen_wherever_it_is_told():
    def added(method, torchao=""):
        model = SimpleNamespace(quantization=method, hf_config=SimpleNamespace())
        arguments = SimpleNamespace(torchao_config=torchao)
        return namespaces.asked_at_load(model, arguments)["quantization"]

    assert added(None) == "none"
    names = {
        added(*told) for told in (("fp8",), ("w8a8_int8",), (None, "int8wo"), (None, "int4wo-128"))
    }
    assert len(names) == 4
    assert "none" not in names
