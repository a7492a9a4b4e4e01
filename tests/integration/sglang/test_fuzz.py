"""The fuzz of real SGLang, small: it sees a load that was spoiled on purpose, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NEVER = ("wrong answers, not reused", "wrong answers, bystander", "answers cut short")


def fuzzed(*options: str) -> tuple[int, dict[str, float]]:
    """The exit status and the report's figures."""
    command = [sys.executable, "-m", "benchmarks.sglang_fuzz", "--json", *options]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    return done.returncode, {row["metric"]: row["value"] for row in rows}


@pytest.mark.timeout(900)
def test_the_fuzz_sees_a_spoiled_load_and_nothing_else():
    status, figures = fuzzed("--requests", "24", "--break", "load")
    assert status == 1
    assert figures["wrong answers, reused"] == 1
    assert figures["requests stuck"] == 0
    assert figures["loads from another salt's donors"] == 0
    assert [figures[name] for name in NEVER] == [0, 0, 0]
    assert not any(value for name, value in figures.items() if name.startswith("left behind"))
    fired = {name: value for name, value in figures.items() if name.endswith(" fired")}
    assert len(fired) == 8
    assert all(fired.values()), fired
