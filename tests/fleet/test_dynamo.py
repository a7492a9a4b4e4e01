"""Beside real Dynamo: its workers are pinned, and it is left alone."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.fleet.support import (
    need,
    need_own_network,
    slow,
)

ROOT = Path(__file__).resolve().parents[2]


def has_dynamo():
    return importlib.util.find_spec("dynamo") is not None


@slow
def test_placement_through_dynamos_frontend_reaches_the_donors_worker(tmp_path):
    need(has_dynamo(), "ai-dynamo")
    need(shutil.which("nats-server"), "nats-server")
    need_own_network()
    model = ROOT / "models" / "semblend-reference-27m"
    inside = [sys.executable, "-m", "tests.fleet.dynamo_inside", str(tmp_path), str(model)]
    result = subprocess.run(
        ["unshare", "-n", *inside],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    seen = json.loads(result.stdout.splitlines()[-1])
    assert len(seen["instances"]) == 2
    for placed in seen["placed"]:
        assert placed["status"] == 200
        assert placed["route"] == "semantic_placement"
        assert placed["worker"] == placed["owner"]
    assert seen["by_header"] == seen["instances"]
    assert seen["unknown"] == {"status": 200, "route": "router"}
    assert [reply["status"] for reply in seen["orphaned"]] == [200, 200]
    assert sorted(reply["retries"] for reply in seen["orphaned"]) == ["0", "1"]
    assert seen["after_eviction"] == {"status": 200, "route": "router"}
