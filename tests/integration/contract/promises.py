"""The promises every adapter keeps, asked of an engine through one small interface.

An engine's tests make a class of :class:`Promises` with a fixture `engine`, which offers `run`,
`cold`, `donate`, `kv`, `rewrite`, `forget_prefixes` and `totals`, as `Served` says. One that runs
in a process of its own also offers `planted`, which plants faults there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar, Protocol

import pytest
import torch

from semblend.core.faults import planted
from semblend.core.ledger import LedgerTotals
from semblend.core.outcomes import Outcome
from semblend.core.plan import Hole, Plan
from semblend.core.tokens import TokenArray
from tests.integration.models import joined, random_tokens

DOCUMENT = random_tokens(300, seed=9001)
DONOR = joined(random_tokens(50, seed=9002), DOCUMENT, random_tokens(20, seed=9003))
TARGET = joined(random_tokens(110, seed=9004), DOCUMENT, random_tokens(33, seed=9005))


class Answer(Protocol):
    """One finished request."""

    tokens: tuple[int, ...]
    cached_tokens: int
    semblend: dict[str, Any]


class Served(Protocol):
    """An engine with its adapter."""

    rewrite: Any
    """What every plan passes through; None leaves it as it is."""

    def run(self, tokens: TokenArray, **options: Any) -> Any: ...
    def cold(self, tokens: TokenArray) -> Any: ...
    def donate(self, tokens: TokenArray, **options: Any) -> Any: ...
    def kv(self, answer: Any, start: int, end: int) -> torch.Tensor: ...
    def forget_prefixes(self) -> None: ...
    def totals(self) -> LedgerTotals: ...
    def donors(self) -> int: ...


def all_holes(plan: Plan, tokens: TokenArray) -> Plan:
    """The same region with every token of it computed."""
    if not plan.spans:
        return plan
    return replace(plan, recompute=(Hole(plan.spans[0].target_start, plan.end),))


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).abs().max() < 2e-3)


def planting(engine: Served, fault: str) -> AbstractContextManager[Any]:
    """A fault where the engine runs."""
    there: Callable[[str], AbstractContextManager[Any]] = getattr(engine, "planted", planted)
    return there(fault)


class Promises:
    """What the shared contract asks."""

    NO_SUCH_FAULT: ClassVar[dict[str, str]] = {}
    """Faults of boundaries this engine does not have, and why not."""

    def test_all_holes_is_cold(self, engine: Served) -> None:
        engine.donate(DONOR)
        cold = engine.cold(TARGET)
        expected = engine.kv(cold, 0, len(TARGET)).clone()
        engine.rewrite = all_holes
        answer = engine.run(TARGET)
        engine.rewrite = None
        assert answer.tokens == cold.tokens
        assert close(engine.kv(answer, 0, len(TARGET)), expected)

    def test_a_moved_span_has_the_donors_values(self, engine: Served) -> None:
        donor = engine.donate(DONOR)
        lent = engine.kv(donor, 50, 350)[:, 1].clone()
        answer = engine.run(TARGET)
        assert answer.semblend["outcome"] == "materialised"
        assert answer.semblend["reused_tokens"] >= 280
        assert close(engine.kv(answer, 120, 400)[:, 1], lent[:, 10:290])

    def test_a_moved_spans_keys_are_turned_to_their_new_place(self, engine: Served) -> None:
        """On the first layer K depends on token and position alone, so there it is cold's."""
        engine.donate(DONOR)
        cold = engine.kv(engine.cold(TARGET), 0, len(TARGET))[0].clone()
        answer = engine.run(TARGET)
        assert answer.semblend["outcome"] == "materialised"
        assert close(engine.kv(answer, 0, len(TARGET))[0], cold)

    @pytest.mark.parametrize("fault", ["plan", "lease", "copy", "checksum", "nested_pass"])
    def test_a_fault_is_cold(self, engine: Served, fault: str) -> None:
        if fault in self.NO_SUCH_FAULT:
            pytest.skip(self.NO_SUCH_FAULT[fault])
        engine.donate(DONOR)
        cold = engine.cold(TARGET)
        expected = engine.kv(cold, 0, len(TARGET)).clone()
        with planting(engine, fault):
            answer = engine.run(TARGET, hints={"capture": False})
        assert answer.tokens == cold.tokens
        assert close(engine.kv(answer, 0, len(TARGET)), expected)
        assert answer.semblend.get("outcome") != "materialised"
        assert answer.semblend.get("reused_tokens", 0) == 0

    def test_approximate_kv_is_no_exact_prefix_and_no_donor(self, engine: Served) -> None:
        engine.donate(DONOR)
        known = engine.donors()
        target = TARGET[70:]  # before the copy it has too few tokens for a donor
        first = engine.run(target)
        assert first.semblend["approximate"]
        assert engine.donors() == known
        again = engine.run(target, hints={"reuse": False, "capture": False})
        assert again.semblend["exact_tokens"] < 40
        assert again.tokens == engine.cold(target).tokens

    def test_only_confirmed_reuse_is_counted(self, engine: Served) -> None:
        engine.donate(DONOR)
        before = engine.totals()
        with planting(engine, "copy"):
            engine.run(TARGET, hints={"capture": False})
        failed = engine.totals()
        reused = Outcome.MATERIALISED
        assert failed.tokens[reused] == before.tokens[reused]
        engine.forget_prefixes()
        if not engine.donors():
            engine.donate(DONOR)
        answer = engine.run(TARGET)
        after = engine.totals()
        counted = after.tokens[reused] - failed.tokens[reused]
        assert counted == answer.semblend["reused_tokens"] > 0
        assert after.open_requests == 0

    def test_a_prompt_is_captured_once(self, engine: Served) -> None:
        before = engine.donors()
        engine.donate(DONOR)
        engine.donate(DONOR)
        engine.run(TARGET, hints={"reuse": False, "capture": False})
        assert engine.donors() == before + 1

    def test_donors_stay_with_their_salt(self, engine: Served) -> None:
        engine.donate(DONOR, salt="one")
        for salt in ("two", None):
            answer = engine.run(TARGET, salt=salt, hints={"capture": False})
            assert answer.semblend["reused_tokens"] == 0
            assert answer.cached_tokens == 0
        assert engine.run(TARGET, salt="one").semblend["reused_tokens"] >= 280
