"""Where ladder clients ask for a plan before the first rung and the result after the last.

If an engine's requests and answers have no room for a connector's fields, a client asks here
instead, in the engine's own process or over a socket. Plan, rungs and climbing are those of
:mod:`semblend.integration.ladder`; only the way to the planner differs.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from semblend.core.errors import InvalidTokensError
from semblend.core.namespace import Namespace
from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray, as_token_array
from semblend.integration.ladder import LadderBook, LadderPlan, split_salt

_LIMIT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderQuestion:
    """A prompt to climb under `salt`; the engine may know salts by number."""

    tokens: Sequence[int]
    salt: str
    salt_id: int | None
    user_salt_id: int | None

    @property
    def user_salt(self) -> str | None:
        """The user's own part of the salt."""
        return split_salt(self.salt)[0]


class Desk(Protocol):
    """What a ladder client needs from an engine's connector."""

    def plan(self, question: LadderQuestion) -> list[int] | None:
        """Ends of the rungs below the prompt itself; None if a ladder does not pay."""
        ...

    def report(self, salt: str, *, wait_s: float = 5.0) -> dict[str, Any]:
        """The outcome of a ladder, which is then closed."""
        ...


@dataclass(slots=True)
class _Climb:
    ladder: LadderPlan
    namespace: Namespace
    dispatched: int = 0
    answered: int = 0
    failure: str | None = None


class Ladders:
    """Ladders being climbed, found by salt or its number. Not thread-safe: the scheduler side's
    lock guards it."""

    def __init__(self, plan: Callable[[TokenArray, Namespace], Plan], *, block_size: int) -> None:
        """`plan` plans a whole prompt, with spans anywhere. It never raises."""
        self._plan = plan
        self._block_size = block_size
        self._book = LadderBook(limit=_LIMIT)
        self._climbs: OrderedDict[str, _Climb] = OrderedDict()
        self._by_number: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._climbs)

    def open(self, question: LadderQuestion, namespace: Namespace) -> tuple[Plan, list[int] | None]:
        """Plan a ladder; return its rungs' ends, or None and a plan that says why not."""
        tokens = as_token_array(question.tokens, name="tokens")
        plan = self._plan(tokens, namespace)
        ladder_id = split_salt(question.salt)[1]
        if ladder_id is None:
            raise InvalidTokensError("salt: expected one made by semblend.integration.ladder")
        ladder = LadderPlan.of(plan, tokens, self._block_size)
        if ladder is None:
            return plan, None
        self._book.open(ladder_id, ladder)
        self._climbs[ladder_id] = _Climb(ladder=ladder, namespace=namespace)
        if question.salt_id is not None:
            self._by_number[question.salt_id] = ladder_id
        while len(self._climbs) > _LIMIT:
            self._forget(next(iter(self._climbs)))
        return plan, list(ladder.ends)

    def id_of_number(self, salt_id: int | None) -> str | None:
        """The ladder whose salt the engine knows by this number."""
        return None if salt_id is None else self._by_number.get(salt_id)

    def namespace_of(self, ladder_id: str) -> Namespace | None:
        """The user's namespace, under which a ladder finds donors."""
        climb = self._climbs.get(ladder_id)
        return None if climb is None else climb.namespace

    def supply(self, ladder_id: str, prompt: TokenArray, computed_tokens: int) -> Plan | None:
        """The plan of one rung: no holes, spans from `computed_tokens` on, whole blocks."""
        ladder = self._book.get(ladder_id)
        if ladder is None:
            return None
        return ladder.rung_plan(prompt, computed_tokens, block_size=self._block_size)

    def dispatched(self, ladder_id: str) -> None:
        """A rung's load was ordered."""
        climb = self._climbs.get(ladder_id)
        if climb is not None:
            climb.dispatched += 1

    def answered(self, ladder_id: str, tokens: int, failure: str | None) -> None:
        """Every rank answered a rung's load."""
        climb = self._climbs.get(ladder_id)
        if climb is None:
            return
        climb.answered += 1
        if failure is None:
            self._book.supplied(ladder_id, tokens)
        else:
            climb.failure = climb.failure or failure

    def is_settled(self, ladder_id: str) -> bool:
        """Whether every load of a ladder was answered."""
        climb = self._climbs.get(ladder_id)
        return climb is None or climb.answered >= climb.dispatched

    def close(self, ladder_id: str, *, certified: bool) -> dict[str, Any]:
        """The outcome of a ladder, which is then dropped."""
        climb = self._climbs.get(ladder_id)
        if climb is None:
            return {"known": False, "reused_tokens": 0, "failed": "unknown ladder"}
        failure = climb.failure
        if not self.is_settled(ladder_id):
            failure = failure or "not every rank has answered"
        reused = self._book.close(ladder_id)
        self._forget(ladder_id)
        return {
            "known": True,
            "rungs": len(climb.ladder.rungs),
            "planned_tokens": climb.ladder.supplied_tokens,
            "reused_tokens": 0 if failure else reused,
            "donor_ids": list(climb.ladder.plan.donor_ids),
            "policy": climb.ladder.plan.policy,
            "certified": certified,
            "failed": failure,
        }

    def _forget(self, ladder_id: str) -> None:
        self._climbs.pop(ladder_id, None)
        self._book.close(ladder_id)
        for number in [key for key, value in self._by_number.items() if value == ladder_id]:
            del self._by_number[number]


def deadline(wait_s: float) -> float:
    """The monotonic time at which the wait ends."""
    return time.monotonic() + max(0.0, wait_s)
