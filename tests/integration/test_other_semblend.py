"""SGLang's plugin and TensorRT-LLM's connector refuse another project's `semblend`, by name."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.other_project import state_distribution

SOURCE = Path(__file__).resolve().parents[2] / "src"
SGLANG = """
from semblend.integration.sglang import plugin
plugin.register()
print(plugin.problems())
"""
TRTLLM = """
from semblend.integration.trtllm.connector import SemBlendKvConnectorScheduler
SemBlendKvConnectorScheduler(None)
"""


@pytest.mark.parametrize("program", [SGLANG, TRTLLM], ids=["sglang", "trtllm"])
def test_the_other_project_is_named_and_nothing_starts(program, tmp_path):
    def start() -> str:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
        )
        return done.stdout + done.stderr

    shutil.copytree(SOURCE / "semblend", tmp_path / "semblend")
    assert "another project of this name" not in start(), "a tree without metadata is not refused"
    state_distribution(tmp_path, "0.3.25")
    refused = start()
    assert f"semblend 0.3.25 in {tmp_path}" in refused
    assert "another project of this name" in refused
