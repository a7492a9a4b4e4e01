"""The fuzz of real vLLM, small: it sees a load that was spoiled on purpose, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
NEVER = ("wrong answers, not reused", "wrong answers, bystander", "answers cut short")


def test_the_fuzz_sees_a_spoiled_load_and_nothing_else():
    command = [sys.executable, "-m", "benchmarks.vllm_fuzz", "--json"]
    options = ["--requests", "16", "--faults", "0", "--break", "load", "--lengths", "512"]
    done = subprocess.run(
        [*command, *options], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 1
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    figures = {row["metric"]: row["value"] for row in rows}
    assert figures["wrong answers, reused"] == 1
    assert figures["requests stuck"] == 0
    assert [figures[name] for name in NEVER] == [0, 0, 0]
    assert not any(value for name, value in figures.items() if name.startswith("left behind"))
