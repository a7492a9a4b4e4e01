"""Runs an app under uvicorn and drains it on a signal before the sockets close."""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI

from semblend.serve.app import drain
from semblend.serve.lifecycle import ServerContext
from semblend.serve.options import ServeOptions


class DrainingServer(uvicorn.Server):
    """A uvicorn server that stays reachable while it drains.

    New requests then get 503 with Retry-After rather than a closed port, so that a client
    or load balancer knows to retry or go elsewhere.
    """

    def __init__(self, config: uvicorn.Config, context: ServerContext) -> None:
        super().__init__(config)
        self._context = context

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await drain(self._context)
        await super().shutdown(sockets)


def make_server(app: FastAPI, options: ServeOptions) -> DrainingServer:
    """Make a server for `app` without starting it."""
    config = uvicorn.Config(
        app,
        host=options.host,
        port=options.port,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
        limit_concurrency=None,
        h11_max_incomplete_event_size=64 * 1024,
    )
    return DrainingServer(config, app.state.context)
