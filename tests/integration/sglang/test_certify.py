"""`semblend certify --engine sglang`: measured by requests, and its certificate holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from semblend.planning.certificates import Certificate, look_up
from semblend.planning.policies.base import policy_from_spec
from tests.integration.models import REFERENCE
from tests.integration.sglang.engines import environment, server_options

POLICY = "depth_shift(span_dependents(2, 8) + query_attention(0.05, 16, 'displaced'))"
"""It needs a table of depth drift: the bundled one."""
SIZE = ("device", "attention_backend", "max_total_tokens", "context_length", "mem_fraction_static",
        "grammar_backend", "max_running_requests")  # fmt: skip
# One workload and wide limits: a few items decide, enough to see that all of it works.
ONE_WORKLOAD = """
from semblend.cli import certify_until_sure as command
cells = command._cells
command._cells = lambda *given: [c for c in cells(*given) if c.workload == "control_negation"]
from semblend.cli.main import app
app()
"""


@pytest.mark.timeout(900)
def test_a_certificate_measured_inside_sglang_holds_for_it(tmp_path):
    options = server_options("reference")
    ended = subprocess.run(
        [
            *(sys.executable, "-c", ONE_WORKLOAD),
            *("certify", "--engine", "sglang", "--model", str(REFERENCE), "--dtype", "float32"),
            *("--engine-args", json.dumps({name: options[name] for name in SIZE})),
            *("--policy", POLICY, "--answers", "0.3", "--confidence", "0.6"),
            *("--length", "400", "--recompute", "0.9", "--redteam-items", "0"),
            *("--output", str(tmp_path / "out"), "--records", str(tmp_path / "records")),
        ],
        env={**os.environ, **environment()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-3000:]
    (path,) = (tmp_path / "out").glob("*.json")
    certificate = Certificate.from_json(path.read_text(encoding="utf-8"))
    engine = certificate.data["engine"]
    assert (engine["name"], engine["kv_format"], engine["speculation"]) == (
        *("sglang", "float32", "none"),
    )
    assert certificate.architecture == "LlamaForCausalLM"
    assert any("SGLang cannot measure" in text for text in engine["left_out"])
    naive = {row["workload"]: row for row in certificate.figures["naive"]}
    assert naive["control_negation"]["towards_donor"] > 0, "or it would mean nothing"
    assert certificate.figures["redteam"] is None, "and it is said"
    standing = look_up(
        certificate.fingerprint,
        dtype="float32",
        quantization="none",
        kv_format="none",
        speculation="none",
        folders=[tmp_path / "out"],
    )
    assert standing.policy == policy_from_spec(POLICY).spec
    assert standing.depth_table is not None
