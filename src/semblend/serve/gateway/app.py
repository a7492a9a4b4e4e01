"""The gateway's application: routes, lifetime and wiring."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from semblend.core.settings import Settings
from semblend.fleet.directory.directory import Directory
from semblend.fleet.keys import fleet_secret
from semblend.fleet.residency.caches import FollowedCaches
from semblend.integration.dynamo.pinning import RouterAffinity
from semblend.serve.api_errors import ApiError
from semblend.serve.auth import Authenticator, Caller, require_admin, require_tenant
from semblend.serve.edge_checks import EdgeChecks
from semblend.serve.gateway.forwarding import Forwarder
from semblend.serve.gateway.gateway_metrics import GatewayMetrics
from semblend.serve.gateway.options import GatewayOptions
from semblend.serve.gateway.placing import Placer
from semblend.serve.gateway.worker_pool import WorkerPool
from semblend.serve.openai.prompts import PromptEncoder
from semblend.serve.watch.json_logs import log


def create_gateway(
    directory: Directory,
    tokenizer: Any,
    options: GatewayOptions,
    settings: Settings,
    *,
    caches: FollowedCaches | None = None,
) -> FastAPI:
    """Create a gateway over `directory` and `caches`, which the caller keeps up to date.

    Raises
    ------
    SettingsError
        If the fleet has no shared secret, the key file cannot be used, or the router is
        unknown.
    """
    authenticator = Authenticator(options)
    timeout = httpx.Timeout(options.read_timeout_s, connect=options.connect_timeout_s)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
    # The environment's proxies are for outside hosts, not for the workers.
    client = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False)
    pool = WorkerPool(options, client)
    metrics = GatewayMetrics(directory, pool, caches)
    encoder = PromptEncoder(tokenizer, max_prompt_tokens=options.max_prompt_tokens)
    placer = Placer(
        directory,
        pool,
        encoder,
        options=options,
        settings=settings,
        secret=fleet_secret(settings.namespace_secret),
        caches=None if caches is None else caches.donors,
    )
    forwarder = Forwarder(
        client,
        pool,
        metrics,
        pin_header=options.pin_header,
        affinity=RouterAffinity(options.router) if options.router else None,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watch = asyncio.create_task(pool.watch())
        log("gateway_started", workers=len(pool.workers))
        yield
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
        await client.aclose()
        encoder.close()

    app = FastAPI(
        title="SemBlend gateway",
        version=version("semblend"),
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.pool = pool
    app.state.placer = placer

    @app.post("/v1/chat/completions")
    @app.post("/v1/completions")
    async def generate(http: Request) -> Response:
        """Place a request and forward it."""
        raw = await http.body()
        caller = _caller(http)
        placed = await placer.place(
            _json(raw), http.headers, tenant=caller.tenant, principal=caller.principal
        )
        metrics.lookup.observe(placed.lookup_s)
        return await forwarder.forward(http, raw, placed)

    @app.post("/semblend/placement")
    async def explain(http: Request) -> JSONResponse:
        """Show how this body would be placed and why, without sending it anywhere.

        Shows every worker's load, so with API keys it needs an admin key.
        """
        require_admin(http.state.caller)
        caller = _caller(http)
        placed = await placer.place(
            _json(await http.body()),
            http.headers,
            tenant=caller.tenant,
            principal=caller.principal,
        )
        option = placed.placement.option
        return JSONResponse(
            {
                "choice": placed.placement.choice.value,
                "worker": None if option is None else option.worker_id,
                "prompt_tokens": placed.prompt_tokens,
                "lookup_ms": round(placed.lookup_s * 1e3, 3),
                "explanation": placed.placement.explain().splitlines(),
            }
        )

    @app.get("/v1/models")
    async def models(http: Request) -> Response:
        """The models of whichever worker answers."""
        placed = await placer.place({}, {}, tenant=None)
        return await forwarder.forward(http, b"", placed)

    @app.get("/health")
    @app.get("/health/ready")
    async def health() -> JSONResponse:
        """Ready while at least one worker is."""
        well = [worker.worker_id for worker in pool.workers.values() if worker.healthy]
        ready = bool(well)
        body = {"status": "ok" if ready else "no_worker", "healthy_workers": len(well)}
        return JSONResponse(body, status_code=200 if ready else 503)

    @app.get("/health/live")
    async def live() -> JSONResponse:
        """Whether the process responds at all."""
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    async def scrape(http: Request) -> Response:
        """Prometheus metrics. They cover all tenants, so with API keys they need an admin key."""
        require_admin(getattr(http.state, "caller", None))
        text, content_type = metrics.render()
        return Response(text, headers={"content-type": content_type})

    @app.exception_handler(ApiError)
    async def refused(_: Request, error: Exception) -> JSONResponse:
        if not isinstance(error, ApiError):
            raise error
        return error.response()

    app.add_middleware(EdgeChecks, options=options, authenticator=authenticator, metrics=metrics)
    return app


def _caller(http: Request) -> Caller:
    """Who sent the prompt.

    Raises
    ------
    ApiError
        400 if the header that should name it is missing.
    """
    caller: Caller = http.state.caller
    require_tenant(caller)
    return caller


def _json(raw: bytes) -> dict[str, Any]:
    """The parsed body, or an empty one: the worker reports what is wrong with it."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}
