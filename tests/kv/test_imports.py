"""Rotary maths and copying need torch and numpy alone: engines' own environments have no more."""

from __future__ import annotations

import subprocess
import sys

BLOCKED = """
import sys
for name in ("xxhash", "pydantic", "rapidfuzz", "transformers", "triton", "safetensors"):
    sys.modules[name] = None
import semblend.kv.rotary_self_test, semblend.kv.rotary_spec, semblend.kv.rotary_table
import semblend.kv.transfer
from semblend.core.errors import MissingExtraError
try:
    import semblend.kv.triton_kernels
except MissingExtraError as error:
    print(error)
"""


def test_rotary_and_transfer_import_with_torch_and_numpy_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert ".[gpu]" in done.stdout
