"""The ladder desk over a Unix socket: one line of JSON in, one line of JSON out.

In most deployments the executor is a separate process, and clients ask it here. The socket
file has mode 0600: a caller who may connect could also submit prompts.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import stat
import threading
from pathlib import Path
from typing import Any

from semblend.core.errors import RequestError, SettingsError
from semblend.integration.ladder_desk import Desk, LadderQuestion

_LINE_BYTES = 64 << 20
"""Enough for a prompt of ten million tokens."""


class DeskServer:
    """Serves a desk until it is closed."""

    def __init__(self, desk: Desk, path: Path) -> None:
        """Start listening.

        Raises
        ------
        SettingsError
            If `path` exists and is not a socket, or the socket cannot be created.
        """
        self._path = path
        try:
            _make_way(path)
            before = os.umask(0o177)
            try:
                self._server = _Server(str(path), _handler_of(desk))
            finally:
                os.umask(before)
        except OSError as error:
            raise SettingsError(f"ladder_socket {path}: {error}") from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="semblend-desk", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop and remove the socket. Idempotent."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._path.unlink(missing_ok=True)


class DeskClient:
    """A client of a desk in another process."""

    def __init__(self, path: str | Path, *, timeout_s: float = 30.0) -> None:
        self._path = str(path)
        self._timeout_s = timeout_s

    def plan(self, question: LadderQuestion) -> list[int] | None:
        """Ends of the rungs below the prompt itself."""
        body = {
            "ask": "plan",
            "tokens": [int(token) for token in question.tokens],
            "salt": question.salt,
            "salt_id": question.salt_id,
            "user_salt_id": question.user_salt_id,
        }
        ends = self._ask(body).get("ends")
        return None if ends is None else [int(end) for end in ends]

    def report(self, salt: str, *, wait_s: float = 5.0) -> dict[str, Any]:
        """The outcome of a ladder."""
        return self._ask({"ask": "report", "salt": salt, "wait_s": wait_s})

    def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(self._timeout_s)
            line.connect(self._path)
            line.sendall(json.dumps(body).encode() + b"\n")
            with line.makefile("rb") as answers:
                answer = json.loads(answers.readline(_LINE_BYTES))
        if not isinstance(answer, dict) or "error" in answer:
            raise RequestError(f"ladder desk: {answer}")
        return answer


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


def _handler_of(desk: Desk) -> type[socketserver.StreamRequestHandler]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            try:
                answer = _answer(desk, json.loads(self.rfile.readline(_LINE_BYTES)))
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            self.wfile.write(json.dumps(answer).encode() + b"\n")

    return Handler


def _answer(desk: Desk, body: dict[str, Any]) -> dict[str, Any]:
    if body["ask"] == "plan":
        question = LadderQuestion(
            tokens=body["tokens"],
            salt=str(body["salt"]),
            salt_id=body["salt_id"],
            user_salt_id=body["user_salt_id"],
        )
        return {"ends": desk.plan(question)}
    if body["ask"] == "report":
        return desk.report(str(body["salt"]), wait_s=float(body["wait_s"]))
    raise RequestError(f"ask: expected plan or report, got {body['ask']!r}")


def _make_way(path: Path) -> None:
    """Remove a socket that another process left behind, and nothing else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise SettingsError(f"ladder_socket {path}: exists and is not a socket")
        path.unlink()
