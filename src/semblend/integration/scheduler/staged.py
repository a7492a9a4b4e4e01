"""The scheduler's part in the salted ladder: planning it, and supplying each rung its span."""

from __future__ import annotations

from typing import Any, Protocol

from semblend.core.errors import InvalidTokensError
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.core.tokens import as_token_array
from semblend.integration.ladder import (
    ENDS_KEY,
    PROMPT_KEY,
    LadderBook,
    LadderPlan,
    rungs_of,
)
from semblend.integration.ladder_desk import Ladders
from semblend.integration.scheduler.engine_planner import EnginePlanner
from semblend.integration.scheduler.port import EngineRequest
from semblend.integration.scheduler.request import Request


class Rungs(Protocol):
    """Ladders in progress, as claims need them."""

    def plan(self, request: Request[EngineRequest], computed_tokens: int) -> Plan | None:
        """The plan of one rung: no hole, spans from `computed_tokens` on."""
        ...

    def confirmed(self, request: Request[EngineRequest]) -> None:
        """A rung was supplied."""
        ...

    def ended(self, request: Request[EngineRequest]) -> None:
        """A rung has finished."""
        ...


class StagedClaims:
    """Ladders in progress; says what a rung may be supplied with."""

    def __init__(self, *, planner: EnginePlanner, block_size: int) -> None:
        self._planner = planner
        self._block_size = block_size
        self._book = LadderBook()

    def __len__(self) -> int:
        return len(self._book)

    def plan(self, request: Request[EngineRequest], computed_tokens: int) -> Plan | None:
        """The plan of one rung: no hole, spans from `computed_tokens` on."""
        ladder_id = request.ladder_id
        if ladder_id is None:
            return None
        hints = request.handle.hints()
        if PROMPT_KEY in hints:
            self._open(ladder_id, request, hints[PROMPT_KEY])
            return None
        ladder = self._book.get(ladder_id)
        if ladder is None:
            request.decline(DeclineReason.DONOR_GONE, "this ladder is not known here")
            return None
        plan = ladder.rung_plan(request.tokens, computed_tokens)
        if plan is not None:
            request.account.claimed(plan)
        return plan

    def confirmed(self, request: Request[EngineRequest]) -> None:
        """A rung was supplied."""
        if request.ladder_id is not None and request.reuse is not None:
            self._book.supplied(request.ladder_id, request.reuse.reused_tokens)

    def ended(self, request: Request[EngineRequest]) -> None:
        """A rung has finished; the last one closes its ladder and reports all of it."""
        ladder_id = request.ladder_id
        ladder = None if ladder_id is None else self._book.get(ladder_id)
        if ladder_id is None or ladder is None:
            return
        if len(request.tokens) == ladder.plan.prompt_tokens:
            total = self._book.close(ladder_id)
            request.notes["ladder"] = {"rungs": len(ladder.rungs), "reused_tokens": total}

    def _open(self, ladder_id: str, request: Request[EngineRequest], prompt: Any) -> None:
        try:
            tokens = as_token_array(prompt, name=PROMPT_KEY)
        except InvalidTokensError as error:
            request.decline(DeclineReason.INVALID_INPUT, str(error))
            return
        plan = self._planner.plan(tokens, request.namespace, exact_tokens=0)
        if not plan.executable:
            if plan.reason is not None:
                request.decline(plan.reason, plan.detail)
            return
        rungs = rungs_of(plan, self._block_size)
        if not rungs:
            request.decline(DeclineReason.NOT_WORTH_IT, "no span fills a block")
            return
        ladder = LadderPlan(plan=plan, tokens=tokens, rungs=rungs)
        self._book.open(ladder_id, ladder)
        request.notes[ENDS_KEY] = list(ladder.ends)


class DeskRungs:
    """Ladders whose clients asked at the desk, as claims need them."""

    def __init__(self, ladders: Ladders) -> None:
        self._ladders = ladders

    def plan(self, request: Request[EngineRequest], computed_tokens: int) -> Plan | None:
        """The plan of one rung: no hole, spans from `computed_tokens` on, whole blocks."""
        if request.ladder_id is None:
            return None
        plan = self._ladders.supply(request.ladder_id, request.tokens, computed_tokens)
        if plan is not None:
            request.account.claimed(plan)
        return plan

    def confirmed(self, request: Request[EngineRequest]) -> None:
        """Nothing: the desk counts answers, the failed ones too."""

    def ended(self, request: Request[EngineRequest]) -> None:
        """Nothing: a ladder ends when its client asks what became of it."""
