"""Real workers for tests: embedded engines on the bundled model, served and joined to a fleet."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from semblend.core.settings import EmbedderKind, Settings
from semblend.engine.engine import EmbeddedEngine
from semblend.engine.model import LoadedModel
from semblend.engine.options import EngineOptions
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.directory.log_follower import LogFollower
from semblend.fleet.keys import donor_key
from semblend.fleet.placement.expected_time import FleetCost
from semblend.fleet.publish.nats_link import LogOptions
from semblend.fleet.publish.publisher import PublisherOptions
from semblend.integration.embedded.fleet import FleetMember
from semblend.serve.gateway.app import create_gateway
from semblend.serve.gateway.options import GatewayOptions
from tests.fleet.support import until
from tests.serve.support import running

MODEL = Path(__file__).resolve().parents[2] / "models" / "semblend-reference-27m"
FAST = PublisherOptions(heartbeat_s=0.1, min_resync_s=0.1, first_retry_s=0.02, last_retry_s=0.2)
SLOW_PREFILL = FleetCost(
    seconds_per_token=1e-3, kv_bytes_per_token=20_000, transfer_bytes_per_s=1e9
)
"""A CPU's prefill: moving K/V beats computing it by far."""


def settings(**changes: Any) -> Settings:
    return Settings(
        **{
            "embedder": EmbedderKind.NONE,
            "allow_uncertified": True,
            "recompute_policy": "none",
            "namespace_secret": "the secret of this fleet",
            "fleet_sampling": 2,
            **changes,
        }
    )


class Worker:
    """An engine, its membership and its server."""

    def __init__(
        self,
        model: LoadedModel,
        name: str,
        nats_url: str,
        *,
        donor_tokens: int = 16_384,
        tenants: bool = True,
        **changes: Any,
    ) -> None:
        """`tenants`: requests say whose they are by x-tenant-id, and must."""
        self.name = name
        self.settings = settings(nats_url=nats_url, worker_id=name, **changes)
        options = EngineOptions(
            pool_bytes=model.kv_shape.token_bytes * 8192,
            host_donor_bytes=model.kv_shape.token_bytes * donor_tokens,
        )
        self._ending = ExitStack()
        self.engine = EmbeddedEngine(model, options=options, settings=self.settings)
        self._ending.callback(self.engine.close)
        self.member = FleetMember(self.engine, self.settings, publisher=FAST, cost=SLOW_PREFILL)
        self._left = False
        self.server = self._ending.enter_context(
            running(self.member, model_name="m", trust_tenant_header=tenants)
        )

    def truth(self) -> frozenset[int]:
        """Keys of the donors the engine really holds."""
        held = self.engine.donors.inventory()
        return frozenset(donor_key(self.name, 0, donor_id) for donor_id, _, _ in held)

    def ask(self, tokens: list[int], **changes: Any) -> httpx.Response:
        return ask(self.server.url, tokens, **changes)

    def crash(self) -> None:
        """Stop without a word to the fleet."""
        self._left = True
        self.member.announcer.publisher.abandon()
        self.server.stop()

    def close(self) -> None:
        if not self._left:
            self.member.close()
        self._ending.close()


def ask(url: str, tokens: list[int], **changes: Any) -> httpx.Response:
    headers = changes.pop("headers", {"x-tenant-id": "none"})  # the fleet's default tenant
    body = {"model": "m", "prompt": tokens, "max_tokens": 4, "temperature": 0, **changes}
    with httpx.Client(trust_env=False, timeout=120) as client:
        return client.post(f"{url}/v1/completions", json=body, headers=headers)


class Gateway:
    """A gateway with its own directory, on a real port."""

    def __init__(self, nats_url: str, workers: list[Worker], *, lease_s: float, **changes: Any):
        self.directory = Directory(
            SketchIndex(max_donors=1024, max_postings=100_000), lease_s=lease_s
        )
        self.follower = LogFollower(
            self.directory, LogOptions(url=nats_url), idle_s=0.1, retry_s=0.05
        )
        through = changes.pop("through", None)
        options = GatewayOptions(
            workers=tuple((worker.name, through or worker.server.url) for worker in workers),
            trust_tenant_header=changes.pop("tenants", True),
            cost=SLOW_PREFILL,
            health_interval_s=changes.pop("health_interval_s", 600.0),
            # A busy machine is no sick worker.
            health_timeout_s=60.0,
            **changes,
        )
        self.app = create_gateway(
            self.directory, workers[0].engine.tokenizer, options, workers[0].settings
        )
        self.checked = first_checks(self.app)

    def knows(self, *workers: Worker) -> None:
        expected = {(worker.name, 0): worker.truth() for worker in workers}
        until(lambda: self.directory.donor_keys() == expected, "the directory to equal the workers")


def first_checks(app: Any) -> Callable[[], bool]:
    """Whether the gateway has asked every worker for its health once, as it does when it starts.

    A worker that a test kills before that is known to be gone without a request.
    """
    pool, asked = app.state.pool, set()
    check = pool._check

    async def noted(worker: Any) -> None:
        await check(worker)
        asked.add(worker.worker_id)

    pool._check = noted
    return lambda: asked == set(pool.workers)


@contextmanager
def on_a_port(app: Any) -> Iterator[str]:
    """An application on a free port of this machine."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))

    def run() -> None:
        with asyncio.Runner() as runner:
            runner.run(server.serve(sockets=[listener]))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    until(lambda: server.started or not thread.is_alive(), "the application to start")
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=60)
        listener.close()


@contextmanager
def serving(gateway: Gateway) -> Iterator[str]:
    with on_a_port(gateway.app) as url:
        try:
            until(gateway.checked, "the gateway to have looked at its workers")
            yield url
        finally:
            gateway.follower.close()
