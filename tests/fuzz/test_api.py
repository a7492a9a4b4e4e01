"""Promise: no request, described or not, makes the server fail or harms the engine behind it.

A small share of what `python -m benchmarks.fuzz` sends at length.
"""

from __future__ import annotations

import pytest

pytest.importorskip("schemathesis", reason="pip install schemathesis")

from benchmarks.fuzz import api
from benchmarks.fuzz.real_engine import pages_held, real_engine

from tests.serve.support import until


def test_a_real_engine_behind_the_server_comes_to_no_harm() -> None:
    with real_engine() as engine:
        sent, failures = api.fuzz(60, seed=2, engine=engine)
        assert failures == []
        assert sent >= 60
        until(lambda: not engine.stats().running + engine.stats().waiting, "it to be idle")
        assert sum(engine.stats().requests.values()) > 10, "some of it was really computed"
        assert engine.failure is None
        assert pages_held(engine) == 0
