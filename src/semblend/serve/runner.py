"""Runs an app under uvicorn; on a signal it drains before the sockets close."""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI

from semblend.serve.app import drain
from semblend.serve.exchange import Desk
from semblend.serve.options import ServeOptions


class DrainingServer(uvicorn.Server):
    """A uvicorn server that stays reachable while it drains.

    New requests are then refused with 503 and Retry-After rather than with a closed
    port, so that a client or balancer knows to come back or go elsewhere.
    """

    def __init__(self, config: uvicorn.Config, desk: Desk) -> None:
        super().__init__(config)
        self._desk = desk

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then close."""
        await drain(self._desk)
        await super().shutdown(sockets)


def make_server(app: FastAPI, options: ServeOptions) -> DrainingServer:
    """A server for `app`, not started yet."""
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
    return DrainingServer(config, app.state.desk)
