"""SGLang keeps the promises of every adapter (tests/integration/contract)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.contract.promises import Promises
from tests.integration.sglang import fault_probes, probes


class Sglang:
    """An engine of these tests in the words of `promises`."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.kv, self.planted = engine.kv, engine.planted

    @property
    def rewrite(self) -> Any:
        return None

    @rewrite.setter
    def rewrite(self, function: Any) -> None:
        self._engine.call(probes.rewrite_with, function)

    def run(self, tokens: Any, **options: Any) -> Any:
        return self._engine.run(tokens, **_asked(**options))

    def cold(self, tokens: Any) -> Any:
        return self._engine.cold(tokens, hints={"reuse": False, "donate": False})

    def donate(self, tokens: Any, **options: Any) -> Any:
        return self._engine.donate(tokens, **_asked(hints={"reuse": False}, **options))

    def forget_prefixes(self) -> None:
        # Donors are the tree's: without its prefixes there are none.
        self._engine.flush()

    def totals(self) -> Any:
        return self._engine.call(fault_probes.totals)

    def donors(self) -> int:
        return int(self._engine.call(probes.donors))


def _asked(*, salt: str | None = None, hints: dict[str, Any] | None = None) -> dict[str, Any]:
    hints = dict(hints or {})
    if "capture" in hints:
        hints["donate"] = hints.pop("capture")
    return {"hints": hints} if salt is None else {"hints": hints, "cache_salt": salt}


@pytest.fixture
def engine(make_engine):
    engine = make_engine("llama")
    engine.flush()
    return Sglang(engine)


class TestSglang(Promises):
    """Every promise."""

    NO_SUCH_FAULT = {"checksum": "K/V stays in SGLang's tree"}  # noqa: RUF012 - as in the base
