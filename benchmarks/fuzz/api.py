"""The server's own OpenAPI description turned against it, by schemathesis.

Requests that follow the description and requests that break it, to every path and method.
An answer must have a documented status, the documented shape and type, and never be a 5xx.
"""

from __future__ import annotations

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
        ServeOptions(model_name=MODEL_NAME, allowed_hosts=("localhost", "testserver")),
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
    @given(case=operation.as_strategy(generation_mode=mode), named=st.booleans())
    def check(case: Any, named: bool) -> None:
        nonlocal count
        count += 1
        if named and mode is schemathesis.GenerationMode.POSITIVE and isinstance(case.body, dict):
            case.body["model"] = MODEL_NAME  # by chance alone it would never be the right one
        case.call_and_validate(checks=_MODES[mode])

    try:
        check()
    except Unsatisfiable:
        return count, []  # nothing about it could be wrong
    except (Exception, BaseExceptionGroup) as error:
        return count, [f"{operation.label}, {mode.value}: {error}"]
    return count, []


def _scripted() -> ServedEngine:
    """An engine that answers at once: it is the server that is asked here."""
    from tests.serve.fakes import ScriptedEngine

    engine: ServedEngine = ScriptedEngine()
    return engine
