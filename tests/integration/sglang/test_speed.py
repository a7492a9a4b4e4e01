"""The benchmark of real SGLang, small: every hit it times was one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.sglang_gpu import POLICIES

ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(600)
def test_the_benchmark_times_hits_under_every_policy_alone_and_at_once():
    options = ("--lengths", "640", "--rounds", "1", "--crowd", "3", "--json")
    command = [sys.executable, "-m", "benchmarks.sglang_gpu", *options]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    figures = {(row["case"], row["metric"]): row["value"] for row in rows}
    assert all(value > 0 for (_, metric), value in figures.items() if "not reused" not in metric)
    for policy in POLICIES:
        assert ("640 tokens", f"hit, {policy}, times cold") in figures
        assert figures[f"3 of 640 tokens at once: {policy}", "not reused"] == 0
