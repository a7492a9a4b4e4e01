"""The validation harness of `benchmarks.suite` on a real vLLM, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed here")

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "models" / "semblend-reference-27m"


def test_the_harness_runs_on_vllm_and_answers_stay_what_they_are(tmp_path):
    output = tmp_path / "validation.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.suite.trtllm_semantic_validation"),
            *("--engine", "vllm", "--model", str(REFERENCE), "--output", str(output)),
            *("--pairs", "1", "--negative-controls", "1", "--document-tokens", "300"),
            *("--max-tokens", "4", "--min-rouge1", "0.35", "--min-token-f1", "0.10", "--json"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    body = json.loads(output.read_text(encoding="utf-8"))
    assert body["context"]["engine"] == "vllm"
    rows = {(row["case"], row["metric"]): row["value"] for row in body["rows"]}
    assert rows["pairs", "pairs_confirmed"] == 1.0
    assert rows["negative_controls", "confirmed_tokens"] == 0
