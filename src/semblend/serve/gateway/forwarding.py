"""Forwards a request to a worker and streams the answer back unchanged.

Another worker is tried only if no connection could be made: a request that may have been
read is never sent twice. The one exception is our own pin, if a router behind the gateway
could not honor it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import httpx
from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from semblend.fleet.placement.chooser import Choice, Placement
from semblend.integration.dynamo.pinning import RouterAffinity
from semblend.integration.worker_header import HEADER
from semblend.serve.api_errors import ApiError
from semblend.serve.gateway.gateway_metrics import GatewayMetrics
from semblend.serve.gateway.placing import Placed
from semblend.serve.gateway.worker_pool import PooledWorker, WorkerPool

_HOP_BY_HOP = frozenset(
    [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
        "content-length",
    ]
)
_PIN_REFUSED = frozenset([400, 500, 503])
"""What Dynamo answers if a pinned instance is unknown or has just died. We set the pin, so
the request is sent again without it; a request that is wrong in itself fails again."""
ROUTES = {
    Choice.DONOR: "semantic_placement",
    Choice.TRANSFER: "semantic_placement",
    Choice.EXACT_PREFIX: "exact_prefix",
    Choice.ROUTER: "router",
}
"""The names benchmarks read in x-semantic-route."""


class Forwarder:
    """Forwards requests to workers."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        pool: WorkerPool,
        metrics: GatewayMetrics,
        *,
        pin_header: str = "",
        affinity: RouterAffinity | None = None,
    ) -> None:
        """Forward requests to workers directly, or through a router in front of them.

        Parameters
        ----------
        pin_header
            The router accepts a worker's name in this header.
        affinity
            The router accepts no name, but keeps requests with the same key together.
        """
        self._pin_header = pin_header
        self._affinity = affinity
        self._client = client
        self._pool = pool
        self._metrics = metrics

    async def forward(self, http: Request, body: bytes, placed: Placed) -> Response:
        """The answer of the chosen worker, or of the next one that can be reached."""
        order = self._order(placed.placement)
        # Behind another router, drop a pin that it cannot honor, once.
        for attempt, worker in enumerate([*order, order[0]] if self._pin_header else order):
            if attempt:
                self._metrics.retries.inc()
            pin = placed.placement.pinned is not None and not attempt
            try:
                with self._pool.queued(worker, placed.prompt_tokens):
                    headers = self._headers(worker, http, pin=pin)
                    reply = await self._send(worker, http, body, headers)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                self._pool.failed(worker)
                continue
            except httpx.HTTPError as error:
                raise ApiError(
                    502,
                    f"worker {worker.worker_id} closed the connection ({type(error).__name__})",
                    code="worker_failed",
                ) from error
            if pin and self._pin_header and reply.status_code in _PIN_REFUSED:
                await reply.aclose()
                continue
            return self._answer(worker, reply, placed, attempt)
        raise ApiError(503, "no worker can be reached", code="no_worker", retry_after_s=2)

    def _order(self, placement: Placement) -> list[PooledWorker]:
        """The chosen worker, then healthy ones by load, then the others, which may be back."""
        workers = self._pool.workers
        chosen = placement.option.worker_id if placement.option is not None else ""
        return sorted(
            workers.values(),
            key=lambda w: (w.worker_id != chosen, not w.healthy, w.queued_tokens, w.worker_id),
        )

    def _headers(self, worker: PooledWorker, http: Request, *, pin: bool) -> list[tuple[str, str]]:
        """The caller's headers, plus ours if a router needs them.

        Our choice overrides the caller's session key: the key says which requests belong
        together, the choice says where their K/V is.
        """
        ours = {"x-request-id": http.state.request_id}
        if self._pin_header and pin:
            ours[self._pin_header] = worker.worker_id
        if self._affinity is not None:
            if pin:
                ours |= self._affinity.headers(worker.worker_id)
            if self._affinity.header not in http.headers:
                ours.setdefault(self._affinity.header, self._affinity.next_key())
        passed = [item for item in http.headers.items() if item[0] not in _HOP_BY_HOP | set(ours)]
        return [*passed, *ours.items()]

    async def _send(
        self, worker: PooledWorker, http: Request, body: bytes, headers: list[tuple[str, str]]
    ) -> httpx.Response:
        request = self._client.build_request(
            http.method,
            f"{worker.url}{http.url.path}",
            params=http.url.query or None,
            headers=headers,
            content=body,
        )
        return await self._client.send(request, stream=True)

    def _answered_by(self, worker: PooledWorker, reply: httpx.Response) -> str:
        """Who answered. Behind a router that decides for itself, ask the worker."""
        if self._affinity is None:
            return worker.worker_id
        name: str = reply.headers.get(HEADER, "")
        if name in self._pool.workers:
            self._affinity.learn(reply.request.headers[self._affinity.header], name)
            return name
        return "unknown"

    def _answer(
        self, worker: PooledWorker, reply: httpx.Response, placed: Placed, retries: int
    ) -> Response:
        name = self._answered_by(worker, reply)
        # Do not claim a choice that could not be kept.
        kept = not retries and name == worker.worker_id
        choice = placed.placement.choice if kept else Choice.ROUTER
        self._metrics.placements.labels(choice.value).inc()
        self._metrics.responses.labels(name, str(reply.status_code)).inc()
        outcome = reply.headers.get("x-semblend-outcome")
        if outcome:
            self._metrics.confirmed.labels(outcome).inc()
        headers = {name: value for name, value in reply.headers.items() if name not in _HOP_BY_HOP}
        if reply.is_success:
            # A caller whom the worker rejects must not learn what the directory knows.
            headers.update(_route_headers(name, choice, placed, retries))
        return StreamingResponse(
            _passed_on(worker, reply), status_code=reply.status_code, headers=headers
        )


def _route_headers(name: str, choice: Choice, placed: Placed, retries: int) -> Mapping[str, str]:
    headers = {
        "x-semantic-route": ROUTES[choice],
        HEADER: name,
        "x-semblend-placement": choice.value,
        "x-semblend-placement-ms": f"{placed.lookup_s * 1e3:.3f}",
        "x-semblend-retries": str(retries),
    }
    option = placed.placement.option
    if option is not None and choice is not Choice.ROUTER:
        headers["x-semblend-expected-tokens"] = str(option.covered_tokens)
    return headers


async def _passed_on(worker: PooledWorker, reply: httpx.Response) -> AsyncIterator[bytes]:
    worker.inside += 1
    try:
        async for part in reply.aiter_raw():
            yield part
    finally:
        worker.inside -= 1
        await reply.aclose()
