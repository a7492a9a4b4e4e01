"""Promise: when the client goes away its request is cancelled and its place is free again."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

import httpx
import openai
import pytest

from tests.serve.fakes import ScriptedEngine
from tests.serve.support import MODEL_NAME, Running, running, until
from tests.serve.texts import document


def half_request(host: Running, **body: Any) -> socket.socket:
    """Send a request and keep the connection, so that it can be dropped at a chosen moment."""
    address = httpx.URL(host.url)
    request = httpx.Request(
        "POST",
        f"{host.v1}/completions",
        json={"model": MODEL_NAME, "prompt": "hello", "max_tokens": 3000, **body},
    )
    raw = socket.create_connection((address.host, address.port or 80))
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    raw.sendall(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + request.read())
    return raw


def idle(host: Running) -> bool:
    stats = host.context.engine.stats()
    return host.context.entry_queue.inside == 0 and stats.running == 0 and stats.waiting == 0


def test_dropping_a_stream_stops_the_real_engine(server: Running, client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model=MODEL_NAME,
        prompt="One two",
        max_tokens=3000,
        stream=True,
        extra_body={"ignore_eos": True},
        extra_headers={"x-request-id": "dropped-stream"},
    )
    next(iter(stream))
    stream.close()
    until(lambda: idle(server), "the engine to stop")
    views = httpx.get(f"{server.url}/semblend/state").json()["requests"]
    mine = next(view for view in views if view["id"] == "dropped-stream")
    assert mine["state"] == "cancelled"
    assert mine["output_tokens"] < 3000


def test_dropping_a_whole_request_stops_the_real_engine(server: Running) -> None:
    raw = half_request(server, prompt=document(500), ignore_eos=True)
    until(lambda: server.context.entry_queue.inside == 1, "the request to enter")
    raw.close()
    until(lambda: idle(server), "the engine to stop")


@pytest.mark.parametrize("stream", [False, True])
def test_dropping_before_the_first_token_cancels(scripted: ScriptedEngine, stream: bool) -> None:
    scripted.pace_s, scripted.endless = 30.0, True
    with running(scripted) as host:
        raw = half_request(host, stream=stream)
        until(lambda: scripted.handles, "the request to reach the engine")
        raw.close()
        assert scripted.handles[0].cancelled.wait(30)
        until(lambda: host.context.entry_queue.inside == 0, "the place to come back")


def test_dropping_while_queued_leaves_the_queue(scripted: ScriptedEngine) -> None:
    scripted.pace_s, scripted.endless = 30.0, True
    with running(scripted, max_concurrent=1) as host:
        first = half_request(host)
        until(lambda: scripted.handles, "the first to enter")
        second = half_request(host)
        until(lambda: host.context.entry_queue.waiting == 1, "the second to wait")
        second.close()
        until(lambda: host.context.entry_queue.waiting == 0, "the second to leave")
        assert len(scripted.handles) == 1
        first.close()


def test_a_reader_that_takes_nothing_cannot_hold_a_place(scripted: ScriptedEngine) -> None:
    """The engine finishes at its own pace; the place is free although nobody reads."""
    with running(scripted, request_timeout_s=30) as host:
        raw = half_request(host, stream=True, max_tokens=4000)
        until(lambda: scripted.ended, "the engine to finish")
        until(lambda: host.context.entry_queue.inside == 0, "the place to come back")
        raw.close()


def test_many_drops_at_once_lose_no_place(scripted: ScriptedEngine) -> None:
    scripted.pace_s, scripted.endless = 0.002, True
    with running(scripted, max_concurrent=4, max_queued=40) as host:

        def drop(index: int) -> None:
            raw = half_request(host, stream=index % 2 == 0)
            if index % 3:
                raw.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    raw.recv(64)
            raw.close()

        threads = [threading.Thread(target=drop, args=(index,)) for index in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # Some may be read only now, after they were dropped.
        queue = host.context.entry_queue
        until(
            lambda: (
                queue.inside == queue.waiting == 0 and len(scripted.ended) == len(scripted.handles)
            ),
            "all places to come back",
        )
        scripted.endless = False
        body = {"model": MODEL_NAME, "prompt": "hello", "max_tokens": 2}
        reply = httpx.post(f"{host.v1}/completions", json=body, timeout=60)
        assert reply.status_code == 200
