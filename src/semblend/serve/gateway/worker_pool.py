"""The workers behind a gateway: which are healthy, and how much work each has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from semblend.fleet.placement.chooser import WorkerLoad
from semblend.serve.gateway.options import GatewayOptions
from semblend.serve.watch.json_logs import log


@dataclass(slots=True)
class PooledWorker:
    """One worker, as the gateway sees it."""

    worker_id: str
    url: str
    healthy: bool = True
    """Assumed until a request cannot connect."""
    queued_tokens: int = 0
    """Prompt tokens sent there whose answer has not begun."""
    inside: int = 0
    failures: int = 0


class WorkerPool:
    """Tracks the workers' health and load. Used only from the gateway's event loop."""

    def __init__(self, options: GatewayOptions, client: httpx.AsyncClient) -> None:
        self._options = options
        self._client = client
        self.workers = {
            worker_id: PooledWorker(worker_id=worker_id, url=url)
            for worker_id, url in options.workers
        }

    def loads(self) -> list[WorkerLoad]:
        """The loads that placement needs."""
        return [
            WorkerLoad(
                worker_id=worker.worker_id,
                queued_tokens=worker.queued_tokens,
                healthy=worker.healthy,
            )
            for worker in self.workers.values()
        ]

    @contextmanager
    def queued(self, worker: PooledWorker, tokens: int) -> Iterator[None]:
        """Count a prompt as waiting at the worker until its answer begins."""
        worker.queued_tokens += tokens
        try:
            yield
        finally:
            worker.queued_tokens -= tokens

    def failed(self, worker: PooledWorker) -> None:
        """Mark a worker that could not be reached."""
        worker.failures += 1
        self._mark(worker, False)

    async def watch(self) -> None:
        """Poll every worker's health, forever."""
        while True:
            await asyncio.gather(*(self._check(worker) for worker in self.workers.values()))
            await asyncio.sleep(self._options.health_interval_s)

    async def _check(self, worker: PooledWorker) -> None:
        try:
            reply = await self._client.get(
                f"{worker.url}/health", timeout=self._options.health_timeout_s
            )
            self._mark(worker, reply.status_code == 200)
        except httpx.HTTPError:
            self._mark(worker, False)

    def _mark(self, worker: PooledWorker, healthy: bool) -> None:
        if worker.healthy != healthy:
            log("worker_health", worker=worker.worker_id, healthy=healthy)
        worker.healthy = healthy
