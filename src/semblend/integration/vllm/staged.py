"""The scheduler's part in the salted ladder: planning it, and supplying each rung its span."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
from semblend.integration.vllm.bridge import PlannerBridge
from semblend.integration.vllm.request_state import RequestState


class StagedClaims:
    """Ladders in progress; answers what a rung may be supplied with."""

    def __init__(self, *, bridge: PlannerBridge, block_size: int) -> None:
        self._bridge = bridge
        self._block_size = block_size
        self._book = LadderBook()

    def __len__(self) -> int:
        return len(self._book)

    def plan(self, state: RequestState, computed_tokens: int) -> Plan | None:
        """The plan of one rung: no hole, spans from `computed_tokens` on."""
        ladder_id = state.ladder_id
        if ladder_id is None:
            return None
        hints: dict[str, Any] = (state.request.kv_transfer_params or {}).get("semblend") or {}
        if PROMPT_KEY in hints:
            self._open(ladder_id, state, hints[PROMPT_KEY])
            return None
        ladder = self._book.get(ladder_id)
        if ladder is None:
            state.decline(DeclineReason.DONOR_GONE, "this ladder is not known here")
            return None
        spans = ladder.supply(state.tokens, computed_tokens)
        if not spans:
            return None
        plan = replace(
            ladder.plan,
            prompt_tokens=len(state.tokens),
            spans=spans,
            recompute=(),
            end=spans[-1].target_end,
            exact_tokens=computed_tokens,
        )
        self._bridge.pipeline.ledger.open(state.request_id, plan)
        return plan

    def confirmed(self, state: RequestState) -> None:
        """A rung was supplied."""
        if state.ladder_id is not None:
            self._book.supplied(state.ladder_id, state.supplied_tokens)

    def ended(self, state: RequestState) -> None:
        """A rung has finished; the last one closes its ladder and reports all of it."""
        ladder_id = state.ladder_id
        ladder = None if ladder_id is None else self._book.get(ladder_id)
        if ladder_id is None or ladder is None:
            return
        if len(state.tokens) == ladder.plan.prompt_tokens:
            total = self._book.close(ladder_id)
            state.notes["ladder"] = {"rungs": len(ladder.rungs), "reused_tokens": total}

    def _open(self, ladder_id: str, state: RequestState, prompt: Any) -> None:
        try:
            tokens = as_token_array(prompt, name=PROMPT_KEY)
        except InvalidTokensError as error:
            state.decline(DeclineReason.INVALID_INPUT, str(error))
            return
        plan = self._bridge.plan(tokens, state.namespace, request_id=None, exact_tokens=0)
        if not plan.executable:
            if plan.reason is not None:
                state.decline(plan.reason, plan.detail)
            return
        rungs = rungs_of(plan, self._block_size)
        if not rungs:
            state.decline(DeclineReason.NOT_WORTH_IT, "no span fills a block")
            return
        ladder = LadderPlan(plan=plan, tokens=tokens, rungs=rungs)
        self._book.open(ladder_id, ladder)
        state.notes[ENDS_KEY] = list(ladder.ends)
