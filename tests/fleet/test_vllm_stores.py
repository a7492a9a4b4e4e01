"""Donors of real vLLM workers through Mooncake Store and NIXL, between two processes."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.fleet.line_workers import ROOT
from tests.fleet.support import need, need_environment, need_own_network, slow
from tests.fleet.vllm_store_inside import PYTHON

pytestmark = slow
PACKAGES = {"mooncake": ("mooncake",), "nixl": ("nixl", "nixl_cu12")}


@pytest.mark.parametrize("kind", sorted(PACKAGES))
def test_a_donor_moves_through_the_store_and_is_computed_once_its_owner_has_left(kind, tmp_path):
    """Mooncake's master listens on all addresses, so everything runs in a network of its own."""
    need(any(importlib.util.find_spec(name) for name in PACKAGES[kind]), kind)
    need_environment(PYTHON, "vLLM", "scripts/vllm_env.sh")
    need_own_network()
    command = [sys.executable, "-m", "tests.fleet.vllm_store_inside", kind, str(tmp_path)]
    result = subprocess.run(
        ["unshare", "-n", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    told = json.loads(result.stdout.splitlines()[-1])
    moved, local = told["fetched"], told["local"]
    assert moved["fetched"] == 1
    assert moved["semblend"]["outcome"] == "materialised"
    assert moved["semblend"]["donor_ids"][0].startswith("fleet.")
    assert moved["semblend"]["reused_tokens"] == local["semblend"]["reused_tokens"] > 600
    assert moved["tokens"] == local["tokens"]
    assert told["gone"]["semblend"]["reused_tokens"] == 0
    assert told["gone"]["tokens"] == told["cold"]["tokens"]
