"""The passes for a GPU compute what transformers computes; here in Triton's interpreter.

On a GPU the same comparisons are tests/engine/test_on_gpu.py and the first part of
benchmarks/gpu/prefill.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from semblend.engine.cuda.fused_models import FUSED, fits
from semblend.engine.cuda.graphs import MOST_ROWS, decode_size, padded_rows
from semblend.kv.rotary_spec import Pairing
from tests.engine.gpu_interpreter import COMPARED
from tests.engine.models import ARCHITECTURES, plain_model, tiny
from tests.engine.models import FUSED as DENSE

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    pytest.importorskip("triton", reason="Triton is not installed: GPU passes are NOT tested here")
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.gpu_interpreter"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_passes_equal_transformers_and_touch_no_other_slot(report) -> None:
    assert len(report["passes"]) == len(COMPARED)
    for name, result in report["passes"].items():
        assert result["logits"] <= 1e-4, name
        assert result["kv"] <= 1e-4, name
        assert result["others_touched"] == 0, name


def test_tiles_equal_a_softmax_in_float64(report) -> None:
    assert len(report["attention"]) == 5
    for name, error in report["attention"].items():
        assert error <= 1e-5, name


@pytest.mark.parametrize(
    ("dtype", "head_dim", "fused"),
    [
        (torch.float32, 64, True),
        (torch.float32, 128, False),
        (torch.bfloat16, 128, True),
        (torch.bfloat16, 256, False),
        (torch.float64, 64, False),
    ],
)
def test_heads_too_wide_for_the_tiles_are_left_to_transformers(dtype, head_dim, fused) -> None:
    model = plain_model("llama-gqa", head_dim=head_dim).to(dtype)
    rotary = SimpleNamespace(pairing=Pairing.NEOX, rotary_dim=head_dim)
    assert fits(model, rotary) is fused


def name_of(model: Any) -> str:
    return f"{type(model).__module__}.{type(model).__qualname__}"


def test_the_table_holds_what_is_compared_with_transformers_and_nothing_else() -> None:
    compared = {name_of(plain_model(architecture)) for architecture, _, _ in COMPARED}
    assert {one.model_class for one in FUSED} == compared


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_dense_architecture_gets_passes_of_its_own_and_experts_none(architecture) -> None:
    loaded, plain = tiny(architecture)
    assert fits(plain, loaded.rotary) is (architecture in DENSE)


class Louder(transformers.LlamaForCausalLM):
    """The same weights and another computation."""


def test_a_model_with_the_same_modules_and_another_computation_is_left_to_transformers() -> None:
    rotary = tiny("llama-gqa")[0].rotary
    config = plain_model("llama-gqa").config.to_dict()
    granite = transformers.GraniteConfig(
        **{**config, "model_type": "granite", "residual_multiplier": 0.2, "logits_scaling": 4.0}
    )
    assert not fits(transformers.GraniteForCausalLM(granite), rotary)
    assert not fits(Louder(plain_model("llama-gqa").config), rotary)


def test_a_parameter_that_the_passes_would_not_use_is_left_to_transformers() -> None:
    rotary = tiny("llama-gqa")[0].rotary
    for where in ("self_attn.q_proj", "mlp", "self_attn"):
        model = plain_model("llama-gqa")
        inside = model.model.layers[-1].get_submodule(where)
        inside.register_parameter("adapter", torch.nn.Parameter(torch.zeros(2)))
        assert not fits(model, rotary), where
    quantised = plain_model("llama-gqa")
    quantised.model.layers[0].mlp.to(torch.bfloat16)
    assert not fits(quantised, rotary)


def test_recorded_sizes_hold_what_they_are_chosen_for() -> None:
    for requests in range(1, 65):
        size = decode_size(requests)
        assert size is not None
        assert requests <= size < 2 * requests + 1
    assert decode_size(65) is None
    for rows in range(1, MOST_ROWS + 1):
        padded = padded_rows(rows)
        assert padded is not None
        assert rows <= padded < rows + 64
    assert padded_rows(MOST_ROWS + 1) is None
