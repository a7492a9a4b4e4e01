"""The Triton kernel does what the torch reference does; here in Triton's interpreter, on the CPU.

On a GPU the same comparison is the first part of benchmarks/gpu/kernels.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LIMITS = {"fp32": 1e-6, "fp16": 2e-3, "bf16": 1.6e-2}
"""One unit in the last place of numbers up to 4: the two may round a tie apart."""


SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def interpreted(module: str) -> str:
    """What a module prints under Triton's interpreter; it has to end well."""
    pytest.importorskip("triton", reason="Triton is not installed: its kernel is NOT tested here")
    done = subprocess.run(
        [sys.executable, "-m", module],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return json.loads(interpreted("tests.kv.triton_interpreter"))


def test_the_kernel_equals_the_reference_for_every_type_pairing_and_head(report) -> None:
    cases = {name: case for name, case in report.items() if isinstance(case, dict)}
    assert len(cases) == 24
    for name, case in cases.items():
        assert case["error"] <= LIMITS[name.split()[0]], name
        assert case["same_slots"], name
        assert case["same_values"], name


def test_spans_that_stay_keep_their_bits_in_the_kernel(report) -> None:
    cases = [case for case in report.values() if isinstance(case, dict)]
    assert sum(case["stays"] for case in cases) > 10
    assert all(case["stays_exact"] for case in cases)


def test_results_do_not_depend_on_how_the_work_is_cut_up(report) -> None:
    assert report["shapes agree"] is True


def test_the_kernel_fills_and_reads_any_engines_pool(report) -> None:
    """Against torch within a rounding, against float64 within two: one to turn, one to shift."""
    layouts = report["layouts"]
    for at, case in enumerate(layouts):
        assert case["from_torch"] <= 4 * LIMITS[SHORT[case["dtype"]]], at
        assert case["from_float64"] <= 8 * LIMITS[SHORT[case["dtype"]]], at
        assert case["exact"], at
    assert sum(case["shifted"] for case in layouts) > 5
    assert sum(case["pool"] for case in layouts) > 10


def test_layers_a_few_at_a_time_give_the_same_bits(report) -> None:
    assert all(case["parts_agree"] for case in report["layouts"])


def test_slots_that_only_the_device_knows_give_the_same_bits(report) -> None:
    assert all(case["places_agree"] for case in report["layouts"])


def test_fp8_moves_in_the_kernel_as_in_the_reference() -> None:
    interpreted("tests.kv.fp8_case")
