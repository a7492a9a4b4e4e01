"""`benchmarks.vllm_gpu` prints every row it promises; what the figures are needs a GPU."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.vllm_gpu import LOOKING, POLICIES

from tests.integration.models import folder_of

ARGUMENTS = (
    *("--lengths", "512", "--rounds", "1", "--crowd", "2", "--stream-tokens", "12"),
    *("--sweep-lengths", "256", "--sweep-shares", "0.6", "--sweep-spans", "1", "2"),
    *("--sweep-pairs", "1", "--json"),
)


def test_one_command_prints_the_table_the_load_and_the_sweep():
    command = [sys.executable, "-m", "benchmarks.vllm_gpu", "--model", folder_of("llama")]
    done = subprocess.run(
        [*command, *ARGUMENTS], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode in (0, 1), done.stderr[-2000:]
    rows = json.loads(done.stdout)["rows"]
    found = {(row["case"], row["metric"]): row for row in rows}
    alone = {metric for case, metric in found if case == "512 tokens"}
    assert {"cold", "miss over cold", "capture behind the first token"} <= alone
    for policy in POLICIES:  # a hit, or why there was none
        assert any(policy in metric for metric in alone), policy
    assert found["measured at start", "costs are measured"]["value"] == 1
    assert ("measured at start", "graphs of vLLM can be replayed") in found
    load = "2 of 512 tokens beside 8 streams: "
    for scene in ("cold", "misses, captured", "none", LOOKING):
        assert {"first token, p50", "first token, p99", "longest gap"} <= {
            metric for case, metric in found if case == load + scene
        }
    assert found[load + "misses, captured", "captured"]["target"] == 2
    worst = found["2 kinds of prompts, none", "worst first token"]
    assert worst["target"] == 1.02
