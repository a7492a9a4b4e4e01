"""vLLM keeps the promises of every adapter (tests/integration/contract)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.contract.promises import Promises


class Vllm:
    """An engine of these tests in the words of `promises`."""

    def __init__(self, engine: Any) -> None:
        object.__setattr__(self, "_engine", engine)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._engine, name, value)

    def totals(self) -> Any:
        return self._engine.scheduler.planner.pipeline.ledger.totals()

    def donors(self) -> int:
        return int(self._engine.scheduler.planner.pipeline.stats().donors)


@pytest.fixture
def engine(make_engine):
    engine = make_engine("llama")
    engine.forget_donors()
    engine.forget_prefixes()
    return Vllm(engine)


class TestVllm(Promises):
    """Every promise."""
