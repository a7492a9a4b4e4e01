"""Structured logs: one JSON object per line; metadata only, never prompt or answer text."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

logger = logging.getLogger("semblend.serve")


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON. Exceptions appear by type and location only:
    the message of a validation or template error may quote what a user wrote."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = describe_error(record.exc_info[1])
        return json.dumps(line, ensure_ascii=True, default=str)


def describe_error(error: BaseException) -> dict[str, Any]:
    """An error's type and location, without its message."""
    frames = traceback.extract_tb(error.__traceback__)
    return {
        "type": type(error).__name__,
        "at": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames[-8:]],
    }


def log(
    event: str, *, level: int = logging.INFO, error: BaseException | None = None, **fields: Any
) -> None:
    """Write one structured line. Errors are described first, so no formatter can quote them."""
    if error is not None:
        fields["error"] = describe_error(error)
    logger.log(level, event, extra={"fields": fields})


class StderrHandler(logging.Handler):
    """Writes to the current `sys.stderr`: one kept from the start may have been closed since."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def configure(level: str = "INFO") -> None:
    """Send everything under `semblend` and `uvicorn.error` to stderr as JSON lines."""
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter())
    for name in ("semblend", "uvicorn.error"):
        target = logging.getLogger(name)
        target.handlers = [handler]
        target.propagate = False
        target.setLevel(level)
    # Our own line says more, and omits query strings.
    logging.getLogger("uvicorn.access").disabled = True
