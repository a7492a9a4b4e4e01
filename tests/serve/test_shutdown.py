"""Promise: a stopping server lets running requests finish, refuses new ones, then cancels."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

import httpx
import pytest

from tests.serve.fakes import ScriptedEngine
from tests.serve.support import MODEL, MODEL_NAME, ROOT, running, until

BODY = {"model": MODEL_NAME, "prompt": "hello", "max_tokens": 20}


class Asking(threading.Thread):
    def __init__(self, url: str, **change: Any) -> None:
        super().__init__(daemon=True)
        self.url, self.body = url, {**BODY, **change}
        self.response: httpx.Response | None = None
        self.start()

    def run(self) -> None:
        self.response = httpx.post(f"{self.url}/v1/completions", json=self.body, timeout=60)

    def answer(self) -> httpx.Response:
        self.join(60)
        assert self.response is not None
        return self.response


@pytest.mark.parametrize("stream", [False, True])
def test_running_requests_finish_and_new_ones_are_told_to_come_back(
    scripted: ScriptedEngine, stream: bool
) -> None:
    scripted.goes_on.clear()
    with running(scripted, drain_timeout_s=60) as host:
        asking = Asking(host.url, stream=stream)
        until(lambda: scripted.handles, "the request to enter")
        host.server.should_exit = True
        until(lambda: host.context.entry_queue.draining, "the drain to begin")
        late = httpx.post(f"{host.url}/v1/completions", json=BODY)
        assert late.status_code == 503
        assert late.headers["retry-after"] == "5"
        health = httpx.get(f"{host.url}/health/ready")
        assert (health.status_code, health.json()["status"]) == (503, "draining")
        scripted.goes_on.set()
        answer = asking.answer()
        assert answer.status_code == 200
        assert "w20" in answer.text
        host.thread.join(60)
        assert not host.thread.is_alive()


def test_what_does_not_finish_in_time_is_cancelled_and_says_so(scripted: ScriptedEngine) -> None:
    scripted.pace_s, scripted.endless = 0.02, True
    with running(scripted, drain_timeout_s=0.1) as host:
        whole, streamed = Asking(host.url), Asking(host.url, stream=True)
        until(lambda: len(scripted.handles) == 2, "both to enter")
        host.server.should_exit = True
        answer = whole.answer()
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "server_stopping"
        streamed_answer = streamed.answer()
        assert "server_stopping" in streamed_answer.text
        host.thread.join(60)
        assert not host.thread.is_alive()
        assert len(scripted.ended) == 2


def test_the_command_serves_logs_json_without_prompts_and_stops_on_a_signal() -> None:
    """The real command with the real engine: one streamed answer, then SIGTERM amid another."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import typer; from semblend.cli.serve import serve; typer.run(serve)",
            str(MODEL),
            "--port",
            str(port),
            "--allow-uncertified",
            "--device",
            "cpu",
        ],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "SEMBLEND_EMBEDDER": "none"},
    )
    url = f"http://127.0.0.1:{port}"
    try:

        def ready() -> bool:
            assert process.poll() is None, process.communicate()[1]
            try:
                return httpx.get(f"{url}/health").status_code == 200
            except httpx.TransportError:
                return False

        until(ready, "the server to be ready", 240)
        body = {**BODY, "prompt": "XYZZY plugh", "stream": True, "ignore_eos": True}
        first = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
        assert first.text.rstrip().endswith("data: [DONE]")
        long = {**BODY, "prompt": "XYZZY " * 9000}
        assert httpx.post(f"{url}/v1/completions", json=long, timeout=60).status_code == 400
        with httpx.stream(
            "POST", f"{url}/v1/completions", json={**body, "max_tokens": 40}, timeout=60
        ) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert "data: [DONE]" in rest
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "XYZZY" not in errors
    told = errors.splitlines()
    begin = next(number for number, line in enumerate(told) if '"started"' in line)
    entries = [json.loads(line) for line in told[begin:]]  # not one that is not JSON
    events = [entry["event"] for entry in entries]
    assert "stopped" in events
    done = [entry for entry in entries if entry["event"] == "generation"]
    assert [entry["output_tokens"] for entry in done] == [20, 40]
    for entry in done:
        assert entry["outcome"]
        assert len(entry["tenant"]) == 12
        assert {"request_id", "prompt_tokens", "ttft_ms", "lookup_ms", "total_ms"} <= set(entry)
