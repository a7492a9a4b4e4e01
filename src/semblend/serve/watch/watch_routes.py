"""Monitoring routes: health, metrics, the page and its data."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from semblend import __version__
from semblend.engine.api import EngineStats
from semblend.serve.api_errors import ApiError
from semblend.serve.auth import Caller, require_admin
from semblend.serve.error_responses import error_responses
from semblend.serve.openai.replies import Health
from semblend.serve.service import Service
from semblend.serve.watch.json_logs import log
from semblend.serve.watch.page import load_page


def watch_router(service: Service, *, needs_key: bool) -> APIRouter:
    """`/`, `/health`, `/metrics`, `/semblend/state` and `/semblend/reuse/resume`."""
    router = APIRouter(tags=["watch"])
    page = load_page()
    context = service.context

    @router.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def index() -> Response:
        return HTMLResponse(page.body, headers=page.headers)

    @router.get("/favicon.ico", include_in_schema=False)
    async def favicon() -> Response:
        return Response(status_code=204)

    @router.get("/health", responses={**error_responses(421), 503: {"model": Health}})
    async def health(response: Response) -> Health:
        """Whether the process is alive and accepts requests."""
        state = await asyncio.to_thread(_health, service)
        response.status_code = 200 if state.ready else 503
        return state

    @router.get("/health/live", responses={**error_responses(421), 503: {"model": Health}})
    async def live(response: Response) -> Health:
        """Whether the process responds at all; restart it if not."""
        state = await asyncio.to_thread(_health, service)
        response.status_code = 200 if state.live else 503
        return state

    @router.get("/health/ready", responses={**error_responses(421), 503: {"model": Health}})
    async def ready(response: Response) -> Health:
        """Whether to send requests here."""
        return await health(response)

    @router.get(
        "/metrics",
        response_class=Response,
        responses={**error_responses(400, 401, 403, 421), 200: {"content": {"text/plain": {}}}},
    )
    async def metrics(request: Request) -> Response:
        """Prometheus metrics. They cover all tenants, so with API keys they need an admin key."""
        require_admin(getattr(request.state, "caller", None))
        body, content_type = await asyncio.to_thread(context.metrics.render)
        return Response(body, headers={"content-type": content_type})

    @router.get("/semblend/state", responses=error_responses(400, 401, 403, 421))
    async def state(
        request: Request, since: Annotated[int, Query(ge=0, le=2**53)] = 0
    ) -> JSONResponse:
        """What the page draws: metadata of the caller's own requests after cursor `since`."""
        caller: Caller = request.state.caller
        if len(request.query_params.getlist("since")) > 1:
            raise ApiError(
                400,
                "since: sent more than once; expected one value",
                param="since",
                code="repeated_parameter",
            )
        known = await asyncio.to_thread(context.engine.stats)
        stats = known if caller.sees_all else None
        health = await asyncio.to_thread(_health, service)
        return JSONResponse(
            {
                "server": {
                    "model": context.options.model_name,
                    "version": __version__,
                    "uptime_s": round(time.time() - service.started_at, 1),
                    "status": health.status,
                    "max_prompt_tokens": service.encoder.max_prompt_tokens,
                    "started_at": service.started_at,
                    "now": time.time(),
                },
                "scope": "all" if caller.sees_all else "tenant",
                "needs_key": needs_key,
                "certificate": {
                    "certified": known.certified,
                    "until": known.certificate_until or None,
                    "detail": known.certificate,
                },
                "store": None if stats is None else _store(stats),
                "load": None if stats is None else _load(service, stats),
                "shadow": None if stats is None else _shadow(stats),
                **context.activity.snapshot(caller, since=since),
            }
        )

    @router.post(
        "/semblend/reuse/resume", responses=error_responses(400, 401, 403, 408, 413, 415, 421, 503)
    )
    async def resume(request: Request) -> JSONResponse:
        """Turn reuse back on wherever shadow samples turned it off. Admins only."""
        require_admin(request.state.caller)
        resumed = await asyncio.to_thread(context.engine.resume_reuse)
        return JSONResponse({"resumed_namespaces": resumed})

    return router


def _health(service: Service) -> Health:
    context = service.context
    if context.entry_queue.draining:
        return Health(status="draining", live=True, ready=False, reason="the server is stopping")
    if failure := context.engine.failure:
        # Only a new process helps, so it is not live either.
        return Health(status="failing", live=False, ready=False, reason=failure)
    try:
        context.engine.stats()
    except Exception as error:
        log("engine_unhealthy", error=error)
        reason = "the engine does not report its state"
        return Health(status="failing", live=True, ready=False, reason=reason)
    return Health(status="ok", live=True, ready=True)


def _store(stats: EngineStats) -> dict[str, Any]:
    return {
        "donors": stats.donors,
        "registrations": stats.registrations,
        "evictions": stats.evictions,
        "tiers": [
            {"name": name, "bytes": size, "capacity": stats.tier_capacity_bytes.get(name, 0)}
            for name, size in stats.tier_bytes.items()
        ],
        "index": {"bytes": stats.index_bytes, "capacity": stats.index_capacity_bytes},
        "pool": {"pages": stats.pool_pages, "free": stats.pool_pages_free},
    }


def _shadow(stats: EngineStats) -> dict[str, Any] | None:
    """How reused requests compare with computing them cold; None if none was sampled."""
    if not stats.shadow_samples:
        return None
    return {
        "samples": stats.shadow_samples,
        "divergence": stats.shadow_divergence,
        "disagreement": stats.shadow_disagreement,
        "suspended": stats.suspended_namespaces,
    }


def _load(service: Service, stats: EngineStats) -> dict[str, int]:
    return {
        "running": stats.running,
        "waiting": stats.waiting,
        "queued": service.context.entry_queue.waiting,
    }
