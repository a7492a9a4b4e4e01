"""Promise: an error met on a request's way is logged by type and place, never by its message.

Messages quote what was being worked on, and that is somebody's prompt.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import semblend.engine.admission as admission_module
import semblend.engine.scheduler as scheduler_module
from semblend.engine.api import FinishReason
from semblend.engine.engine import EmbeddedEngine
from semblend.engine.segmented import compute
from semblend.serve.watch.json_logs import JsonFormatter
from tests.engine.conftest import EngineMaker, make_engine
from tests.engine.models import random_tokens
from tests.engine.test_engine import behind

__all__ = ["make_engine"]

WORD = "WORD-OF-A-PROMPT"


def broken(*args: Any, **options: Any) -> Any:
    raise RuntimeError(f"{WORD} could not be handled")


def broken_once() -> Callable[..., Any]:
    calls: list[object] = []

    def first(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return broken() if len(calls) == 1 else compute(*args, **options)

    return first


PLACES: dict[str, Callable[[EmbeddedEngine], tuple[Any, str]]] = {
    "a lookup": lambda engine: (engine.pipeline, "plan"),
    "the index": lambda engine: (engine.pipeline._store, "register"),
    "an exact prefix": lambda engine: (engine._prefixes, "match"),
    "capture": lambda engine: (engine.donors, "_hold"),
    "the pool": lambda engine: (engine.pool, "read"),
    "a tier's read": lambda engine: (engine._tiers.memory[0], "acquire"),
    "a tier's write": lambda engine: (engine._tiers.memory[0], "put_from"),
    "spans": lambda engine: (admission_module, "load_spans"),
    "a pass": lambda engine: (scheduler_module, "compute"),
    "a step": lambda engine: (engine._worker, "_background"),
}


@pytest.mark.parametrize("place", PLACES)
def test_what_an_error_says_stays_out_of_the_log(
    place: str,
    make_engine: EngineMaker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    driver = make_engine()
    driver.run(behind(1))
    where, name = PLACES[place](driver.engine)
    with monkeypatch.context() as patched:
        patched.setattr(where, name, broken_once() if place == "a pass" else broken)
        assert driver.run(behind(5)).reason is not FinishReason.CANCELLED
        driver.run(random_tokens(150, 9))
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert any(line.get("error", {}).get("type") == "RuntimeError" for line in lines), place
    assert WORD not in json.dumps(lines)
