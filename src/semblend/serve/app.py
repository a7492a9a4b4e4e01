"""The application: how its parts are wired and how it shuts down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from semblend.integration.worker_header import WorkerHeader
from semblend.serve.api_errors import ApiError, from_validation
from semblend.serve.auth import Authenticator, Pseudonyms
from semblend.serve.edge_checks import EdgeChecks
from semblend.serve.entry_queue import EntryQueue
from semblend.serve.lifecycle import ServerContext
from semblend.serve.openai.openai_routes import openai_router
from semblend.serve.options import ServeOptions
from semblend.serve.protocols import ServedEngine
from semblend.serve.service import Service
from semblend.serve.text_routes import text_router
from semblend.serve.watch.activity import Activity
from semblend.serve.watch.json_logs import log
from semblend.serve.watch.server_audit import ServerAudit
from semblend.serve.watch.server_metrics import ServerMetrics
from semblend.serve.watch.watch_routes import watch_router


def create_app(engine: ServedEngine, options: ServeOptions) -> FastAPI:
    """Create an application that serves `engine`. The caller still closes the engine.

    Raises
    ------
    SettingsError
        If the key file cannot be used.
    """
    authenticator = Authenticator(options)
    names = Pseudonyms(options.secret)
    entry_queue = EntryQueue(options)
    metrics = ServerMetrics(engine, entry_queue)
    context = ServerContext(
        engine=engine,
        options=options,
        entry_queue=entry_queue,
        activity=Activity(names, limit=options.recent_requests),
        metrics=metrics,
        names=names,
        audit=ServerAudit.start_if_wanted(options, names),
        background=set(),
    )
    service = Service(context)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        log("started", model=options.model_name, api_keys=authenticator.needs_key)
        yield
        await drain(context)
        service.encoder.close()
        if context.audit is not None:
            await asyncio.to_thread(context.audit.close)
        log("stopped")

    app = FastAPI(
        title="SemBlend",
        summary="An OpenAI-compatible server that reuses the K/V of documents it has read.",
        version=version("semblend"),
        docs_url=None,  # The stock pages load scripts from another host; ours at /docs does not.
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.context = context
    key = [Depends(HTTPBearer(auto_error=False))] if authenticator.needs_key else []
    app.include_router(openai_router(service), dependencies=key)
    app.include_router(text_router(service, app), dependencies=key)
    app.include_router(watch_router(service, needs_key=authenticator.needs_key))
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ApiError, _refused)
    if name := getattr(engine, "worker_id", ""):
        # Inside the gate, so that rejected callers learn nothing about the fleet.
        app.add_middleware(WorkerHeader, worker_id=name)
    app.add_middleware(EdgeChecks, options=options, authenticator=authenticator, metrics=metrics)
    return app


async def drain(context: ServerContext) -> None:
    """Admit no more requests, give running ones time to finish, then cancel the rest."""
    if not await context.entry_queue.drain(context.options.drain_timeout_s):
        log("drain_timeout", cancelled=context.entry_queue.inside)
        context.entry_queue.cancel_all()
        await context.entry_queue.drain(5.0)
    if context.background:
        await asyncio.wait(tuple(context.background), timeout=5.0)


async def _malformed(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, RequestValidationError):
        raise error
    return from_validation(error.errors()).response()


async def _http_error(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        raise error
    messages = {
        404: "no such path; /openapi.json lists the paths",
        405: "this path does not accept that method; /openapi.json lists those it accepts",
        400: "the body is not valid JSON",
    }
    refusal = ApiError(error.status_code, messages.get(error.status_code, str(error.detail)))
    response = refusal.response()
    response.headers.update(dict(error.headers or {}))
    return response


async def _refused(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, ApiError):
        raise error
    return error.response()
