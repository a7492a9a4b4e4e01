"""Models we did not prove are refused by the name of what they do differently."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from semblend.core.errors import UnsupportedModelError, UnsupportedRotaryError
from semblend.engine.model import load_model, wrap_model
from semblend.engine.support import SUPPORTED_TYPES, check_supported
from tests.engine.models import ARCHITECTURES, REFERENCE, plain_model, tiny

REFUSED: dict[str, tuple[Any, str]] = {
    "mixtral with a window": (transformers.MixtralConfig(sliding_window=4096), "sliding-window"),
    "gpt-oss": (transformers.GptOssConfig(), "sliding-window"),
    "gemma2": (transformers.Gemma2Config(), "sliding-window|soft-capping"),
    "deepseek": (transformers.DeepseekV3Config(), "latent attention"),
    "encoder-decoder": (transformers.T5Config(), "encoder-decoder"),
    "m-rope": (
        transformers.Qwen2Config(
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 1e4,
                "mrope_section": [16, 24, 24],
            }
        ),
        "M-RoPE",
    ),
    "awq": (
        transformers.LlamaConfig(quantization_config={"quant_method": "awq", "bits": 4}),
        "a quantised checkpoint",
    ),
    "gpt2": (transformers.GPT2Config(), "'gpt2' is not supported"),
    "linear attention": (transformers.Qwen3NextConfig(), "linear or state-space"),
}


@pytest.mark.parametrize(("config", "named"), REFUSED.values(), ids=REFUSED)
def test_an_unproven_feature_is_refused_by_name(config: Any, named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        check_supported(config)


def test_each_supported_type_is_in_the_test_matrix() -> None:
    tested = {tiny(architecture)[1].config.model_type for architecture in ARCHITECTURES}
    assert tested == set(SUPPORTED_TYPES)


def test_an_unmovable_rotary_kind_is_refused_at_load() -> None:
    model = plain_model("llama-gqa")
    model.config.rope_parameters = {
        "rope_type": "dynamic",
        "rope_theta": 1e4,
        "factor": 2.0,
    }
    with pytest.raises(UnsupportedRotaryError, match="dynamic"):
        wrap_model(model, name="dynamic")


def test_a_model_without_our_batch_says_so_instead_of_answering() -> None:
    model, _ = tiny("llama-gqa")
    with pytest.raises(UnsupportedModelError, match="pass keyword arguments"):
        model.model(torch.tensor([[1, 2, 3]]))


def test_fingerprints_follow_the_weights_and_not_the_name() -> None:
    first = wrap_model(plain_model("llama-gqa"), name="one")
    second = wrap_model(plain_model("llama-gqa"), name="two")
    assert first.fingerprint == second.fingerprint
    changed = plain_model("llama-gqa")
    with torch.no_grad():
        changed.model.layers[1].mlp.up_proj.weight[0, 0] += 1e-3
    assert wrap_model(changed, name="one").fingerprint != first.fingerprint
    assert wrap_model(plain_model("qwen2"), name="one").fingerprint != first.fingerprint


def test_the_reference_model_loads_with_its_facts() -> None:
    model = load_model(str(REFERENCE), device="cpu")
    assert model.kv_shape.dtype is torch.float32
    assert (model.kv_shape.layers, model.kv_shape.kv_heads, model.kv_shape.head_dim) == (12, 2, 64)
    assert model.max_positions == 8192
    assert 2 in model.eos_token_ids
    assert model.rope.startswith("rope:")
    assert model.fingerprint == load_model(str(REFERENCE), device="cpu").fingerprint


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="dtype 'int3'"):
        load_model(str(REFERENCE), dtype="int3")


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UnsupportedModelError, match=re.escape(str(folder))):
            load_model(str(folder))
