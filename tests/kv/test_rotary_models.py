"""Our rotation is the model's own, for every rotary kind and pairing that we claim."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from semblend.core.errors import UnsupportedRotaryError
from semblend.kv.rotary_self_test import self_test
from semblend.kv.rotary_spec import Pairing, RotarySpec
from semblend.kv.rotary_table import RotaryTable
from tests.kv.models import FAMILIES, GPTJ, POSITIONS, Family, apply_rotary, rotary_module

every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def model_table(family: Family, model, dtype=torch.float32) -> RotaryTable:
    spec = RotarySpec.from_config(model.config)
    return RotaryTable.from_model_rotary(
        rotary_module(model), POSITIONS, pairing=spec.pairing, dtype=dtype
    )


@every_family
def test_a_spec_read_from_a_config_says_what_the_model_does(family: Family) -> None:
    spec = RotarySpec.from_config(family.config())
    assert spec.rotary_dim == family.rotary_dim
    assert (spec.pairing is Pairing.INTERLEAVED) == family.interleaved
    assert spec.head_dim == 16
    assert spec.max_positions == POSITIONS


@every_family
def test_rows_computed_from_a_spec_are_the_models_rows(family: Family) -> None:
    model = family.model()
    ours = RotaryTable.from_spec(RotarySpec.from_config(model.config))
    theirs = model_table(family, model)
    torch.testing.assert_close(ours.cos, theirs.cos, rtol=0, atol=5e-6)
    torch.testing.assert_close(ours.sin, theirs.sin, rtol=0, atol=5e-6)


@every_family
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_moved_keys_equal_keys_the_models_function_computes_there(family, dtype) -> None:
    model = family.model(dtype)
    table = model_table(family, model, dtype)
    generator = torch.Generator().manual_seed(3)
    keys = torch.randn(1, 2, 40, 16, generator=generator).to(dtype)
    source = torch.randint(0, POSITIONS, (40,), generator=generator)
    target = torch.randint(0, POSITIONS, (40,), generator=generator)

    def placed(positions: torch.Tensor) -> torch.Tensor:
        cos, sin = rotary_module(model)(keys, positions[None])
        width = cos.shape[-1]
        turned = apply_rotary(model)(keys[..., :width], keys[..., :width], cos, sin)[1]
        return torch.cat((turned, keys[..., width:]), dim=-1).transpose(1, 2)

    moved = table.rerotate(placed(source), source, target)
    # bf16 keys carry an error of 2**-9 of the pair's length from either rotation.
    tolerance = 1e-5 if dtype == torch.float32 else 4e-2
    torch.testing.assert_close(moved, placed(target), rtol=0, atol=tolerance)
    assert moved.dtype == dtype


@every_family
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_the_self_test_accepts_the_models_own_rotation(family: Family, dtype) -> None:
    model = family.model(dtype)
    self_test(model, model_table(family, model, dtype))
    if dtype == torch.float32:
        self_test(model, RotaryTable.from_spec(RotarySpec.from_config(model.config)))


@every_family
def test_the_self_test_refuses_the_other_pairing(family: Family) -> None:
    model = family.model()
    right = model_table(family, model)
    other = Pairing.NEOX if family.interleaved else Pairing.INTERLEAVED
    wrong = RotaryTable(cos=right.cos, sin=right.sin, pairing=other)
    with pytest.raises(UnsupportedRotaryError, match="self-test: K of layer"):
        self_test(model, wrong)


def test_gptj_without_a_rotary_module_is_moved_by_its_spec() -> None:
    model = GPTJ.model()
    spec = RotarySpec.from_config(model.config)
    assert (spec.rotary_dim, spec.pairing) == (8, Pairing.INTERLEAVED)
    self_test(model, RotaryTable.from_spec(spec))


def test_the_self_test_finds_a_layer_without_rotary_positions() -> None:
    model = FAMILIES[0].model()
    table = model_table(FAMILIES[0], model)

    layer = model.model.layers[2].self_attn
    plain = layer.forward

    def without_positions(hidden_states, position_embeddings, **kwargs):
        cos, sin = position_embeddings
        still = (torch.ones_like(cos), torch.zeros_like(sin))
        return plain(hidden_states, position_embeddings=still, **kwargs)

    layer.forward = without_positions
    with pytest.raises(UnsupportedRotaryError, match="layer 2"):
        self_test(model, table)


def test_a_wrong_theta_and_a_wrong_rotary_dim_fail_the_self_test() -> None:
    model = FAMILIES[0].model()
    for changes in ({"theta": 20_000.0}, {"rotary_dim": 8}):
        spec = RotarySpec(
            **{"head_dim": 16, "rotary_dim": 16, "theta": 10_000.0, "max_positions": POSITIONS}
            | changes
        )
        with pytest.raises(UnsupportedRotaryError, match="self-test"):
            self_test(model, RotaryTable.from_spec(spec))


def test_yarns_attention_factor_cancels_when_keys_move() -> None:
    yarn = next(family for family in FAMILIES if family.name == "llama-yarn-stated")
    table = model_table(yarn, yarn.model())
    lengths = table.cos**2 + table.sin**2
    assert float(lengths.min()) > 1.5  # The rows are scaled indeed, by 1.3 squared.
    keys = torch.randn(10, 2, 16)
    moved = table.rerotate(keys, torch.arange(10), torch.arange(10) + 50)
    torch.testing.assert_close(moved.norm(dim=-1), keys.norm(dim=-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_the_bundled_model_passes_the_self_test_over_its_whole_context(dtype) -> None:
    folder = Path(__file__).parents[2] / "models" / "semblend-reference-27m"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    spec = RotarySpec.from_config(model.config)
    assert spec.max_positions == 8192
    table = RotaryTable.from_model_rotary(
        model.model.rotary_emb, spec.max_positions, pairing=spec.pairing, dtype=dtype
    )
    self_test(model, table)
