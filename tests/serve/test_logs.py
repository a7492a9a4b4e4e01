"""Promise: a log line never fails a request, and reaches whatever stderr is at that moment."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from semblend.serve.watch.json_logs import JsonFormatter, StderrHandler


def test_a_line_follows_stderr_when_the_first_one_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter())
    record = logging.LogRecord("semblend", logging.INFO, __file__, 1, "started", None, None)
    handler.emit(record)
    assert '"event": "started"' in first.getvalue()

    first.close()
    monkeypatch.setattr(sys, "stderr", second)
    handler.emit(record)
    assert second.getvalue().count("\n") == 1
    assert "Traceback" not in second.getvalue()
