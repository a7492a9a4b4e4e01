"""Runs a server for tests: real uvicorn on a free port, in a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from semblend.serve.app import create_app
from semblend.serve.options import ServeOptions
from semblend.serve.protocols import ServedEngine
from semblend.serve.runner import DrainingServer, make_server

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "semblend-reference-27m"
MODEL_NAME = MODEL.name


@dataclass(slots=True)
class Running:
    url: str
    app: FastAPI
    server: DrainingServer
    thread: threading.Thread

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"

    @property
    def context(self) -> Any:
        return self.app.state.context

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(timeout=60)
        assert not self.thread.is_alive(), "the server did not stop"


@contextmanager
def running(engine: ServedEngine, **options: Any) -> Iterator[Running]:
    settings = ServeOptions(
        **{"model_name": MODEL_NAME, "default_temperature": 0.0, "port": 0, **options}
    )
    app = create_app(engine, settings)
    server = make_server(app, settings)
    # With the protocol named, as the loop itself does: else no TCP_NODELAY, and 40 ms a request.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def serve() -> None:
        with asyncio.Runner() as runner:
            runner.run(server.serve(sockets=[listener]))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    until(lambda: server.started or not thread.is_alive(), "the server to start")
    host = Running(url=f"http://127.0.0.1:{port}", app=app, server=server, thread=thread)
    try:
        yield host
    finally:
        host.stop()
        listener.close()


def until(condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    """Wait for something that happens on another thread; the bound only ends a broken test."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:g} s for {what}")
        time.sleep(0.005)
    return value


def call(app: FastAPI, method: str, path: str, **kwargs: Any) -> httpx.Response:
    """One request straight into the application, without a socket."""

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **kwargs)

    return asyncio.run(send())
