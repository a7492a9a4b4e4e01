"""Runs a mock engine: in the foreground for the command, otherwise in a thread."""

from __future__ import annotations

import socket
import threading
import time
from types import TracebackType
from typing import Any, Self

from sembench.errors import EndpointError, MissingExtraError, UsageError
from sembench.mock_engine.settings import MockSettings

_START_SECONDS = 30.0


def _server(settings: MockSettings, **options: Any) -> Any:
    try:
        import uvicorn

        from sembench.mock_engine.app import create_app
    except ImportError as error:
        raise MissingExtraError(
            package="fastapi and uvicorn", extra="serve", purpose="the mock engine"
        ) from error
    # Use h11 rather than httptools: it closes a failed stream the same way on every platform.
    config = uvicorn.Config(
        create_app(settings),
        log_level="critical",
        access_log=False,
        http="h11",
        ws="none",
        **options,
    )
    return uvicorn.Server(config)


def serve(settings: MockSettings, *, host: str, port: int) -> None:
    """Serve until interrupted.

    Raises
    ------
    UsageError
        If the address cannot be bound.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UsageError(f"--host, --port: {host}:{port}: {error.strerror}") from error
    _server(settings, host=host, port=port).run()


class RunningMockEngine:
    """A mock engine on a free local port, for the duration of a ``with`` block."""

    def __init__(self, settings: MockSettings) -> None:
        self.settings = settings
        self.url = ""
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._server: Any = None

    def __enter__(self) -> Self:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = _server(self.settings, timeout_graceful_shutdown=1)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )
        self._thread.start()
        deadline = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise EndpointError("the mock engine did not start")
            time.sleep(0.005)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=_START_SECONDS)
        if self._socket is not None:
            self._socket.close()
