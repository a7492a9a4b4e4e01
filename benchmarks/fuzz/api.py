"""Tests the server against its own OpenAPI description, with schemathesis.

Sends requests that follow the description and requests that break it, to every path and method.
An answer must have a documented status, shape and type, and must never be a 5xx. A scripted
engine tests the server; a real one also shows what an accepted request can do to the engine.
"""

from __future__ import annotations

import re
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from semblend.serve.app import create_app
from semblend.serve.options import ServeOptions
from semblend.serve.protocols import ServedEngine

MODEL_NAME = "served"
MAX_TOKENS = 16
"""Maximum tokens per answer, because a real engine computes them."""
DOCUMENT = " ".join(f"Shelf {number} holds lamp {number * 7 % 31}." for number in range(8))
_CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
_MODES = {
    schemathesis.GenerationMode.POSITIVE: _CHECKS,
    schemathesis.GenerationMode.NEGATIVE: [*_CHECKS, negative_data_rejection],
}


def fuzz(requests: int, *, seed: int, engine: ServedEngine | None = None) -> tuple[int, list[str]]:
    """(requests sent, what was wrong): at least `requests` over all operations and modes."""
    app = create_app(
        engine or _scripted(),
        ServeOptions(
            model_name=MODEL_NAME,
            allowed_hosts=("localhost", "testserver"),
            max_output_tokens=MAX_TOKENS,
            default_max_tokens=MAX_TOKENS,
        ),
    )
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    operations = [result.ok() for result in schema.get_all_operations()]
    open_ended = [operation for operation in operations if _has_input(operation)]
    each = -(-requests // (len(open_ended) * len(_MODES)))
    count, failures = 0, []
    for operation in operations:
        for mode in _MODES:
            sent, wrong = _one(operation, mode, each if operation in open_ended else 1, seed)
            count += sent
            failures += wrong
    return count, failures


def _has_input(operation: Any) -> bool:
    return bool(list(operation.body) or list(operation.query))


def _one(operation: Any, mode: Any, examples: int, seed: int) -> tuple[int, list[str]]:
    count = 0

    @hypothesis_seed(seed)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        case=operation.as_strategy(generation_mode=mode),
        meant=st.integers(0, 7),
        reads=st.booleans(),
    )
    def check(case: Any, meant: int, reads: bool) -> None:
        nonlocal count
        count += 1
        described = mode is schemathesis.GenerationMode.POSITIVE and isinstance(case.body, dict)
        if not meant or not described:
            case.call_and_validate(checks=_MODES[mode])
            return
        _let_in(case.body, reads=reads)
        left_out: set[str] = set()
        while _leave_out(case.body, case.call_and_validate(checks=_MODES[mode]), left_out):
            count += 1

    try:
        check()
    except Unsatisfiable:
        return count, []  # nothing about it can be wrong
    except (Exception, BaseExceptionGroup) as error:
        return count, [f"{operation.label}, {mode.value}: {error}"]
    return count, []


def _let_in(body: dict[str, Any], *, reads: bool) -> None:
    """Fix values that would almost never be right by chance, so that the engine has to answer.

    With `reads`, a document is inserted between the made-up parts, so there is something to reuse.
    """
    body.update(_whole(body), model=MODEL_NAME)
    for field in ("max_tokens", "max_completion_tokens"):
        if isinstance(body.get(field), int):
            body[field] = 1 + body[field] % MAX_TOKENS
    if body.get("stream_options") is not None:
        body["stream"] = True
    if not reads:
        return
    if isinstance(body.get("prompt"), str):
        body["prompt"] += DOCUMENT + body["prompt"]
    for message in (body.get("messages") or ())[:1]:
        if isinstance(message.get("content"), str):
            message["content"] += DOCUMENT + message["content"]


def _leave_out(body: dict[str, Any], reply: Any, left_out: set[str]) -> bool:
    """Take the field that a refusal names out of the body; False if there is none to take.

    A prompt is replaced instead. A second refusal of it is about something else in the body
    (tools that make it too long, say), so each field goes once.
    """
    named = (reply.json()["error"]["param"] or "") if reply.status_code == 400 else ""
    field = re.split(r"[.\[]", named)[0]
    if field in left_out or body.pop(field, None) is None:
        return False
    left_out.add(field)
    if field == "prompt":
        body["prompt"] = DOCUMENT
    elif field == "messages":
        body["messages"] = [{"role": "user", "content": DOCUMENT}]
    return True


def _whole(value: Any) -> Any:
    """Convert numbers such as 5.0, which are integers to a schema but not to this server."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(each) for key, each in value.items()}
    return [_whole(each) for each in value] if isinstance(value, list) else value


def _scripted() -> ServedEngine:
    """An engine that answers at once, because this tests the server."""
    from tests.serve.fakes import ScriptedEngine

    engine: ServedEngine = ScriptedEngine()
    return engine
