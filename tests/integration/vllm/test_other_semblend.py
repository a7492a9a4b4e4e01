"""The connector does not start where another project's `semblend` was installed over it."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.other_project import state_distribution

SOURCE = Path(__file__).resolve().parents[3] / "src"
START = """
from semblend.integration.vllm.connector_v1 import SemBlendConnectorV1
SemBlendConnectorV1(None, None)
"""


def start(site):
    return subprocess.run(
        [sys.executable, "-c", START],
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin", "VLLM_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
    ).stderr.strip()


def test_the_connector_names_the_other_project_and_refuses(tmp_path):
    shutil.copytree(SOURCE / "semblend", tmp_path / "semblend")
    assert "ForeignDistributionError" not in start(tmp_path), (
        "a tree without metadata is not refused"
    )
    state_distribution(tmp_path, "0.3.25")
    refused = start(tmp_path)
    assert "ForeignDistributionError" in refused
    assert f"semblend 0.3.25 in {tmp_path}" in refused
