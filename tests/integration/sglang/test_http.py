"""The server a user starts: semblend-sglang, its HTTP routes, its log, its metrics."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from sembench.engine_events.sglang import SglangParser
from tests.deployed_metrics import missing, named
from tests.integration.models import REFERENCE
from tests.integration.sglang.engines import environment

FACTS = " ".join(
    f"The {place} of {town} is kept by {name}, who opens it at {hour} and closes it at dusk."
    for place, town, name, hour in (
        ("lighthouse", "Varn", "Mirelle Otho", "six"),
        ("library", "Tesk", "Ansel Brock", "half past seven"),
        ("bridge", "Halm", "Ruun Saffer", "five"),
        ("market", "Orrin", "Della Marsh", "nine"),
        ("mill", "Sedge", "Tomas Vey", "eight"),
        ("garden", "Lune", "Iris Calder", "ten"),
    )
)
_START_S = 400


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    log = folder / "server.log"
    port = _free_port()
    command = [
        str(Path(sys.executable).with_name("semblend-sglang")),
        *("--semblend-mode", "segmented_experimental"),
        *("--semblend-audit-path", str(folder / "audit.jsonl")),
        *("--model-path", str(REFERENCE), "--host", "127.0.0.1", "--port", str(port)),
        *("--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32"),
        *("--max-total-tokens", "16384", "--context-length", "4096"),
        *("--mem-fraction-static", "0.7", "--grammar-backend", "none"),
        *("--enable-metrics", "--enable-cache-report"),
    ]
    environ = {
        **os.environ,
        **environment(mode="discovery_only"),
        "SEMBLEND_WORKER_ID": "sglang-a",
    }
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=environ, stdout=output, stderr=output, start_new_session=True
        )
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120)
    try:
        _wait(client, process, log)
        yield client, log, folder
    finally:
        client.close()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def generate(client: httpx.Client, text: str, **options) -> dict:
    parameters = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
    response = client.post(
        "/generate", json={"text": text, "sampling_params": parameters, **options}
    )
    assert response.status_code == 200, response.text
    return response.json()


def test_answers_are_signed_with_the_workers_name(server):
    client, _, _ = server
    assert client.get("/health").headers["x-semblend-worker"] == "sglang-a"


def test_generate_reuses_and_says_so(server):
    client, log, _ = server
    generate(client, f"Read these notes. {FACTS} Who keeps the mill?")
    meta = generate(client, f"You are a guide who answers briefly. {FACTS} Who keeps the bridge?")[
        "meta_info"
    ]
    (said,) = meta["semblend"]
    assert said["outcome"] == "materialised"
    assert said["reused_tokens"] > 100
    assert meta["cached_tokens"] == said["reused_tokens"] + said["exact_tokens"]
    stranger = generate(client, f"You guide strangers. {FACTS} Who?", extra_key="somebody else")
    assert stranger["meta_info"]["cached_tokens"] == 0
    summary = _summary(log)
    assert summary.donor_registrations >= 1
    assert summary.semantic_hits == 1
    assert summary.materialized_tokens == said["reused_tokens"]
    assert summary.materialized_semantic_kv_reuse


def test_chat_completions_reuse(server):
    client, _, folder = server

    def ask(system: str, question: str) -> dict:
        messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": f"{FACTS} {question}"},
        ]
        body = {"model": "default", "messages": messages, "max_tokens": 8, "temperature": 0}
        response = client.post("/v1/chat/completions", json={**body, "extra_key": "chat"})
        assert response.status_code == 200, response.text
        return response.json()

    ask("Answer from the notes.", "Who keeps the garden?")
    answer = ask("You are careful. Answer in as few words as you can.", "Who keeps the market?")
    assert answer["choices"][0]["message"]["content"] is not None
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
    assert '"event": "runtime_materialized"' in (folder / "audit.jsonl").read_text()


def test_metrics_count_what_the_engine_confirmed(server):
    client, _, _ = server
    text = client.get("/metrics").text
    found = {
        line.split("{")[0] + line.partition('source="')[2].partition('"')[0]: float(
            line.split()[-1]
        )
        for line in text.splitlines()
        if line.startswith("sglang:semblend_tokens_total{")
    }
    assert found["sglang:semblend_tokens_totalreused"] > 100
    assert found["sglang:semblend_tokens_totalcomputed"] > 0
    assert "sglang:semblend_requests_total" in text


def test_alerts_and_dashboards_name_what_a_running_server_exports(server):
    client, _, _ = server
    text = client.get("/metrics").text
    assert len(named("sglang:")) > 15
    assert not missing("sglang:", text)
    assert re.search(r'^sglang:semblend_mode{.*mode="segmented_experimental".*} 1.0$', text, re.M)
    assert re.search(r"^sglang:semblend_certified{.*} 0.0$", text, re.M)


def test_one_line_of_the_log_says_which_mode_runs(server):
    _, log, _ = server
    lines = [line for line in log.read_text().splitlines() if "SemBlend runs as" in line]
    assert len(lines) == 1
    assert "segmented_experimental" in lines[0]
    assert "semblend certify" in lines[0]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(client: httpx.Client, process: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"the server stopped:\n{log.read_text()[-3000:]}")
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(1)
    pytest.fail(f"the server did not start:\n{log.read_text()[-3000:]}")


def _summary(log: Path):
    parser = SglangParser()
    for line in log.read_text().splitlines():
        parser.feed(line)
    return parser.finish()
