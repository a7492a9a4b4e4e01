"""Promise: whatever the engine does, the caller gets a clear answer and no place is lost."""

from __future__ import annotations

import json
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from semblend.core.errors import CapacityError, EngineBusyError, RequestError, RequestFieldError
from semblend.engine.engine import EmbeddedEngine
from semblend.engine.model import wrap_model
from tests.engine.models import plain_model
from tests.serve.fakes import ScriptedEngine
from tests.serve.support import MODEL_NAME, Running, running, until

BODY = {"model": MODEL_NAME, "prompt": "SECRET-PROMPT", "max_tokens": 5}


def post(host: Running, **change: Any) -> httpx.Response:
    return httpx.post(f"{host.v1}/completions", json={**BODY, **change}, timeout=60)


def errors_of(response: httpx.Response) -> list[dict[str, Any]]:
    frames = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    return [json.loads(frame)["error"] for frame in frames if "error" in json.loads(frame)]


@pytest.mark.parametrize("fault", ["break_after", "fail_after"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_fails_before_the_first_token_is_an_honest_500(
    scripted: ScriptedEngine, fault: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    setattr(scripted, fault, 0)
    with running(scripted) as host, caplog.at_level(logging.INFO):
        response = post(host, stream=stream)
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "internal_error"
        assert "SECRET" not in response.text
        assert "SECRET" not in caplog.text
        until(lambda: host.context.entry_queue.inside == 0, "the place to come back")
        setattr(scripted, fault, None)
        assert post(host).status_code == 200


@pytest.mark.parametrize("fault", ["break_after", "fail_after"])
def test_an_engine_that_fails_midway_ends_the_stream_with_an_error(
    scripted: ScriptedEngine, fault: str
) -> None:
    setattr(scripted, fault, 2)
    with running(scripted) as host:
        response = post(host, stream=True)
        assert response.status_code == 200
        assert [error["code"] for error in errors_of(response)] == ["internal_error"]
        assert "[DONE]" not in response.text
        assert "SECRET" not in response.text
        client = openai.OpenAI(base_url=host.v1, api_key="x", max_retries=0)
        with pytest.raises(openai.APIError, match="failed to answer"):
            list(client.completions.create(**BODY, stream=True))  # type: ignore[call-overload]
        client.close()
        until(lambda: host.context.entry_queue.inside == 0, "the place to come back")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestFieldError("tokens", "a prompt of 1 to 9 tokens expected, got 12"), 400),
        (RequestError("it cannot be served, whatever the words"), 400),
        (EngineBusyError("1024 requests are waiting already; try later"), 503),
        (EngineBusyError("tokens: the words decide nothing"), 503),
        (CapacityError("full"), 503),
        (ValueError("SECRET-PROMPT"), 500),
    ],
)
def test_a_refusal_by_the_engine_keeps_its_meaning(
    scripted: ScriptedEngine, error: Exception, status: int
) -> None:
    scripted.submit_error = error
    with running(scripted) as host:
        response = post(host)
        assert response.status_code == status
        assert "SECRET" not in response.text
        assert ("retry-after" in response.headers) is (status == 503)
        until(lambda: host.context.entry_queue.inside == 0, "the place to come back")


def test_an_engine_that_does_not_answer_for_itself_is_not_ready(scripted: ScriptedEngine) -> None:
    with running(scripted) as host:
        assert httpx.get(f"{host.url}/health").json() == {
            "status": "ok",
            "live": True,
            "ready": True,
            "reason": None,
        }
        scripted.stats_error = RuntimeError("gone")
        for path, status in (("/health", 503), ("/health/ready", 503), ("/health/live", 200)):
            response = httpx.get(f"{host.url}{path}")
            assert response.status_code == status
            assert response.json()["status"] == "failing"
            assert response.json()["reason"]


def test_an_engine_whose_thread_is_dead_is_neither_live_nor_ready_and_says_so() -> None:
    """And nobody waits for it: what it had is ended, what comes is turned away."""
    tokenizer = ScriptedEngine().tokenizer
    model = wrap_model(
        plain_model("llama-gqa", vocab_size=len(tokenizer)), name="tiny", tokenizer=tokenizer
    )
    with EmbeddedEngine(model) as engine, running(engine, request_timeout_s=60) as host:
        assert httpx.get(f"{host.url}/health").status_code == 200
        assert post(host).status_code == 200
        with ThreadPoolExecutor(1) as pool:
            scheduler = engine._worker._scheduler
            step, held = scheduler.step, threading.Event()

            def struck_down() -> bool:
                if not scheduler.waiting and not scheduler.running:
                    return step()
                held.wait(60)
                raise SystemExit("SECRET-PROMPT")

            scheduler.step = struck_down  # type: ignore[method-assign]
            waiting = pool.submit(post, host)
            until(lambda: engine.stats().waiting, "a request to wait")
            held.set()
            assert waiting.result().status_code == 500
        for path in ("/health", "/health/ready", "/health/live"):
            response = httpx.get(f"{host.url}{path}")
            assert response.status_code == 503
            assert response.json() == {
                "status": "failing",
                "live": False,
                "ready": False,
                "reason": "the engine's thread has ended",
            }
        assert post(host).status_code == 503
        assert engine.flush_prefix_cache() >= 0, "errands are still run, by whoever has them"
        state = httpx.get(f"{host.url}/semblend/state").json()
        assert state["server"]["status"] == "failing"


@pytest.mark.parametrize("stream", [False, True])
def test_time_is_limited_and_the_engine_is_told(scripted: ScriptedEngine, stream: bool) -> None:
    scripted.endless, scripted.pace_s = True, 0.02
    # A stream that has begun: its first token comes in time also on a busy machine.
    limit_s = 2.0 if stream else 0.15
    with running(scripted, request_timeout_s=limit_s) as host:
        response = post(host, stream=stream)
        if stream:
            assert [error["code"] for error in errors_of(response)] == ["request_timeout"]
        else:
            assert response.status_code == 504
            assert "0.15 seconds" in response.json()["error"]["message"]
        assert scripted.handles[0].cancelled.is_set()
        until(lambda: host.context.entry_queue.inside == 0, "the place to come back")
        state = httpx.get(f"{host.url}/semblend/state").json()
        assert [view["state"] for view in state["requests"]] == ["timed_out"]


def test_bodies_held_at_a_time_are_bounded(scripted: ScriptedEngine) -> None:
    """Callers who send their bodies slowly cannot make the server hold any number of them."""
    with running(scripted, max_concurrent=1, max_queued=0) as host:
        address = httpx.URL(host.url)
        held = []
        for _ in range(1 + 0 + 16):
            raw = socket.create_connection((address.host, address.port or 80))
            raw.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
                b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
            )
            held.append(raw)
        until(lambda: post(host).status_code == 503, "the server to be full")
        assert httpx.get(f"{host.url}/health").status_code == 200
        for raw in held:
            raw.close()
        until(lambda: post(host).status_code == 200, "the server to take requests again")


def test_a_slow_body_is_given_up(scripted: ScriptedEngine) -> None:
    with running(scripted, body_timeout_s=0.05) as host:
        address = httpx.URL(host.url)
        with socket.create_connection((address.host, address.port or 80)) as raw:
            raw.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
                b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
            )
            reply = raw.recv(4096)
        assert b" 408 " in reply.splitlines()[0]
