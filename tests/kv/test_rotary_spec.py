"""What a config says about rotary positions, in every shape it was ever written in."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from transformers import AutoConfig

from semblend.core.errors import UnsupportedRotaryError
from semblend.kv.rotary_spec import Pairing, RotaryKind, RotarySpec
from semblend.kv.rotary_table import RotaryTable
from tests.kv.models import FAMILIES, LINEAR, LLAMA3, YARN

BASE = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
}


@pytest.mark.parametrize(
    "scaling", [None, LINEAR, LLAMA3, YARN], ids=["default", "linear", "llama3", "yarn"]
)
@pytest.mark.parametrize("type_name", ["rope_type", "type"])
def test_the_old_shape_and_the_new_one_are_read_alike(scaling, type_name) -> None:
    parameters = dict(scaling or {"rope_type": "default", "rope_theta": 10_000.0})
    new = RotarySpec.from_config({**BASE, "rope_parameters": parameters})
    theta = parameters.pop("rope_theta")
    kind = parameters.pop("rope_type")
    old_scaling = None if scaling is None else {**parameters, type_name: kind}
    old = RotarySpec.from_config({**BASE, "rope_theta": theta, "rope_scaling": old_scaling})
    assert old == new
    assert old.fingerprint() == new.fingerprint()
    assert old.kind == RotaryKind(kind)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_config_object_and_its_dictionary_are_read_alike(family) -> None:
    config = family.config()
    assert RotarySpec.from_config(config) == RotarySpec.from_config(config.to_dict())


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"partial_rotary_factor": 0.5}, 8),
        ({"rotary_pct": 0.25}, 4),
        ({"rotary_dim": 6}, 6),
        ({"head_dim": 32}, 32),
        ({"head_dim": 32, "partial_rotary_factor": 0.5}, 16),
        ({}, 16),
    ],
)
def test_partial_rotary_is_read_under_every_name_it_has(stated, expected) -> None:
    spec = RotarySpec.from_config({**BASE, "rope_theta": 1e4, **stated})
    assert spec.rotary_dim == expected


def test_reading_leaves_the_config_as_it_was() -> None:
    config = FAMILIES[3].config()
    before = config.to_dict()
    RotarySpec.from_config(config)
    assert config.to_dict() == before


def test_yarn_without_a_factor_takes_the_ratio_of_the_contexts() -> None:
    stated = {"rope_type": "yarn", "original_max_position_embeddings": 32, "rope_theta": 1e4}
    spec = RotarySpec.from_config({**BASE, "rope_parameters": {**stated, "factor": None}})
    assert spec.factor == 3.0


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic NTK"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic NTK"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_scaling": {"type": "su", "factor": 2.0}}, "longrope"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}, "M-RoPE"),
        ({"rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}}, "M-RoPE"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "unknown rotary kind 'spiral'"),
        ({"rope_parameters": {"rope_type": "proportional"}}, "unknown rotary kind"),
        ({"rope_local_base_freq": 10_000.0}, "rope_local_base_freq"),
        ({"model_type": "cohere2"}, "NoPE"),
        ({"no_rope_layers": [1, 1, 0]}, "NoPE"),
        ({"kv_lora_rank": 512}, "MLA"),
        ({"rope_theta": None}, "no rope_theta"),
        ({"head_dim": 15}, "rotary_dim=15"),
        ({"rope_parameters": {"rope_type": "linear", "factor": "four"}}, "factor"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"rope_parameters": ["yarn"]}, "expected a mapping"),
    ],
)
def test_what_cannot_be_moved_is_refused_by_name(config, named) -> None:
    with pytest.raises(UnsupportedRotaryError, match=named):
        RotarySpec.from_config({**BASE, "rope_theta": 1e4, **config})


def test_rotary_parameters_by_layer_type_are_refused_with_the_types() -> None:
    config = AutoConfig.for_model("gemma3_text")
    with pytest.raises(UnsupportedRotaryError, match="sliding_attention"):
        RotarySpec.from_config(config)


def test_real_configs_of_refused_families_are_refused() -> None:
    with pytest.raises(UnsupportedRotaryError, match="longrope"):
        RotarySpec.from_config(
            AutoConfig.for_model(
                "phi3",
                rope_parameters={
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "short_factor": [1.0] * 48,
                    "long_factor": [2.0] * 48,
                    "original_max_position_embeddings": 2048,
                },
            )
        )
    with pytest.raises(UnsupportedRotaryError, match="MLA"):
        RotarySpec.from_config(AutoConfig.for_model("deepseek_v3"))
    with pytest.raises(UnsupportedRotaryError, match="NoPE"):
        RotarySpec.from_config(AutoConfig.for_model("smollm3"))
    with pytest.raises(UnsupportedRotaryError, match="no rope_theta"):
        RotarySpec.from_config(AutoConfig.for_model("gpt2"))


def test_a_rotary_module_that_changes_with_length_is_refused_by_name() -> None:
    for kind, named in (("dynamic", "dynamic"), ("longrope", "longrope"), ({}, "layer type")):
        with pytest.raises(UnsupportedRotaryError, match=named):
            RotaryTable.from_model_rotary(SimpleNamespace(rope_type=kind), 8)
    with pytest.raises(UnsupportedRotaryError, match="M-RoPE"):
        RotaryTable.from_model_rotary(SimpleNamespace(rope_type="default", mrope_section=[4]), 8)


def test_fingerprints_differ_wherever_rotation_does() -> None:
    specs = [RotarySpec.from_config(family.config()) for family in FAMILIES]
    assert len({spec.fingerprint() for spec in specs}) == len(set(specs))
    one = RotarySpec(head_dim=16, rotary_dim=16, theta=1e4, max_positions=96)
    other = RotarySpec(
        head_dim=16, rotary_dim=16, theta=1e4, max_positions=96, pairing=Pairing.INTERLEAVED
    )
    assert one.fingerprint() != other.fingerprint()


@pytest.mark.parametrize(
    "changes",
    [
        {"rotary_dim": 3},
        {"rotary_dim": 18},
        {"theta": 0.0},
        {"factor": -1.0},
        {"attention_factor": 0.0},
        {"max_positions": 0},
        {"kind": "llama3"},
        {"kind": "yarn"},
    ],
)
def test_a_spec_that_rotates_nothing_sensible_cannot_exist(changes) -> None:
    values = {"head_dim": 16, "rotary_dim": 16, "theta": 1e4, "max_positions": 96}
    with pytest.raises(UnsupportedRotaryError):
        RotarySpec(**{**values, **changes})


def test_each_kind_of_layer_has_its_spec() -> None:
    config = AutoConfig.for_model("gemma3_text")
    specs = RotarySpec.by_layer_type(config)
    assert {name: spec.theta for name, spec in specs.items()} == {
        "full_attention": 1e6,
        "sliding_attention": 1e4,
    }
    assert RotarySpec.by_layer_type({**BASE, "rope_theta": 1e4}) == {
        "": RotarySpec.from_config({**BASE, "rope_theta": 1e4})
    }
    broken = {"rope_parameters": {"full_attention": {"rope_theta": 1e4}, "factor": 2.0}}
    with pytest.raises(UnsupportedRotaryError, match="factor beside those of full_attention"):
        RotarySpec.by_layer_type({**BASE, **broken})


def test_of_a_row_of_latents_the_declared_part_rotates() -> None:
    config = AutoConfig.for_model("deepseek_v3")
    (spec,) = RotarySpec.by_layer_type(config).values()
    assert spec.rotary_dim == spec.head_dim == config.qk_rope_head_dim == 64
    assert spec.pairing is Pairing.INTERLEAVED
    with pytest.raises(UnsupportedRotaryError, match="qk_rope_head_dim"):
        RotarySpec.by_layer_type({**BASE, "rope_theta": 1e4, "kv_lora_rank": 512})
