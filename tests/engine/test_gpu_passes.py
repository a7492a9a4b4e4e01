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

from semblend.engine.cuda_forward import fits
from semblend.engine.graphs import MOST_ROWS, decode_size, padded_rows
from semblend.kv.rotary import Pairing
from tests.engine.models import plain_model

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
    assert len(report["passes"]) == 3
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
