"""The connector in the leader's scheduler: what is offered, ordered, confirmed and kept.

Call order, as TensorRT-LLM makes it: `matched_tokens` once for a request, `allocated` with
its blocks, `build_meta` once a step, `request_finished`. What the ranks did comes back
through the link and is looked at whenever one of these is called.

An ordinary request is offered its identical prefix only: TensorRT-LLM publishes what a
connector loaded as exact K/V, and that is exact. Spans from elsewhere are offered to
rungs of a ladder alone, whose salt nobody else has.
"""

from __future__ import annotations

import itertools
import logging
import threading
from dataclasses import dataclass
from typing import Any

from semblend.core.errors import SemBlendError
from semblend.core.namespace import Namespace
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.integration.audit import AuditStream
from semblend.integration.isolation import by_salt
from semblend.integration.ladder import split_salt
from semblend.integration.ladder_desk import LadderQuestion, Ladders, deadline
from semblend.integration.scheduler.request import Arrival, Request, Stage
from semblend.integration.scheduler.settlement import beside
from semblend.integration.trtllm import namespaces
from semblend.integration.trtllm.captures import Captures
from semblend.integration.trtllm.interfaces import (
    RequestData,
    SchedulerOutput,
    UpstreamRequest,
)
from semblend.integration.trtllm.metadata import CaptureCommand, ConnectorMeta, LoadCommand
from semblend.integration.trtllm.request_state import (
    Blocks,
    Salt,
    State,
    finishes_prompt,
    prompt_of,
    salt_of,
)
from semblend.integration.trtllm.semantic_plan import discovered, dispatched
from semblend.integration.trtllm.settlement import RankSettlements
from semblend.integration.trtllm.setup import SchedulerSetup
from semblend.integration.trtllm.support import request_refusal
from semblend.integration.trtllm.wiring import Link

logger = logging.getLogger("semblend.trtllm")

NOTHING = (0, False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """An order that not every rank has answered yet."""

    state: State
    plan: Plan


class SchedulerSide:
    """Owns the requests as the leader sees them. The executor's thread and ladder clients
    call it, one at a time."""

    def __init__(self, setup: SchedulerSetup, link: Link) -> None:
        self.setup = setup
        self.audit = AuditStream(engine="trtllm", logger=logger, **setup.options.audit)
        self.provider = setup.provider
        self.states: dict[int, State] = {}
        self._link = link
        self._lock = threading.RLock()
        self._captures = Captures(
            provider=setup.provider,
            options=setup.options,
            audit=self.audit,
            block_size=setup.block_size,
        )
        self._ladders = Ladders(setup.provider.segmented, block_size=setup.block_size)
        self._settlements = RankSettlements(
            ledger=setup.provider.pipeline.ledger, audit=self.audit, block_size=setup.block_size
        )
        self._numbers = itertools.count(1)
        self._orders: list[LoadCommand] = []
        self._loads: dict[int, _Load] = {}
        self._salts_by_number: bool | None = None
        self.audit.event("scheduler_initialized", **setup.described())

    # -- a request ---------------------------------------------------------------------

    def matched_tokens(self, request: UpstreamRequest, computed_tokens: int) -> tuple[int, bool]:
        """Tokens supplied behind `computed_tokens`, and whether the request waits for them."""
        with self._lock:
            state: State | None = None
            try:
                self._settle()
                state = self._describe(request)
                state.account.exact_tokens = computed_tokens
                plan = self._plan(state, computed_tokens)
                if plan is None or not self._may_offer(state, plan, computed_tokens):
                    self._settlements.looked_up(state, plan, 0)
                    return NOTHING
                return self._offer(state, plan, computed_tokens)
            except Exception as error:
                logger.warning("SemBlend lookup failed; computed cold", exc_info=True)
                self.audit.event("lookup_error", detail=repr(error))
                if state is not None:
                    state.account.decline(DeclineReason.INTERNAL_ERROR, type(error).__name__)
                return NOTHING

    def allocated(self, request: UpstreamRequest, block_ids: list[int]) -> None:
        """The blocks of a request are known."""
        with self._lock:
            state = self.states.get(int(request.request_id))
            if state is None:
                return
            blocks = state.handle
            blocks.request = request  # the engine's own object, not the one C++ asked with
            blocks.block_ids = tuple(int(block) for block in block_ids)
            if state.claim is not None and state.stage is Stage.CLAIMED:
                self._dispatch(state, state.claim.plan, blocks.block_ids)

    def build_meta(self, scheduled: SchedulerOutput) -> ConnectorMeta:
        """This step's orders to every rank."""
        with self._lock:
            self._settle()
            captures: list[CaptureCommand] = []
            seen = (getattr(scheduled, name, ()) for name in ("new_requests", "cached_requests"))
            for data in itertools.chain(*seen):
                try:
                    order = self._capture(data)
                except Exception as error:
                    # A donor the less; this step's loads must reach the ranks all the same.
                    logger.warning("SemBlend did not keep %s: %s", data.request_id, error)
                    continue
                if order is not None:
                    captures.append(order)
            meta = ConnectorMeta(
                loads=self._orders, captures=captures, dropped=self._captures.take_dropped()
            )
            self._orders = []
            return meta

    def request_finished(self, request: UpstreamRequest, block_ids: list[int]) -> bool:
        """A request ends; True keeps its blocks until they are copied."""
        with self._lock:
            self._settle()
            state = self.states.pop(int(request.request_id), None)
            if state is None:
                return False
            if state.stage is Stage.CLAIMED:
                state.account.failed(DeclineReason.CANCELLED, "ended before it was loaded")
            self._withdraw(state)
            if state.stage is Stage.SEEN:
                self._settlements.ended(state)
            return self._captures.is_pending(state.handle.capture_id)

    # -- ladders -----------------------------------------------------------------------

    def plan(self, question: LadderQuestion) -> list[int] | None:
        """Ends of the rungs to climb, or None: nothing to climb for. Never raises."""
        with self._lock:
            try:
                self._settle()
                return self._open_ladder(question)
            except SemBlendError as error:
                self.audit.event("lookup_error", detail=str(error))
            except Exception as error:
                logger.warning("SemBlend could not plan a ladder", exc_info=True)
                self.audit.event("lookup_error", detail=repr(error))
            return None

    def report(self, salt: str, *, wait_s: float = 5.0) -> dict[str, Any]:
        """What became of a ladder, once every rank has answered or the wait is over."""
        ladder_id = split_salt(salt)[1] or ""
        until = deadline(wait_s)
        while True:
            with self._lock:
                self._settle()
                left = until - deadline(0.0)
                if self._ladders.is_settled(ladder_id) or left <= 0:
                    return self._ladders.close(ladder_id, certified=self.setup.certified)
            self._link.wait(min(left, 0.1))

    def _open_ladder(self, question: LadderQuestion) -> list[int] | None:
        objection = self.setup.ladder_objection or next(iter(self._link.refusals), None)
        by_number = bool(self._salts_by_number)
        isolation = (
            namespaces.isolation_by_number(question.user_salt_id)
            if by_number
            else by_salt(question.user_salt)
        )
        if by_number and question.salt_id is None:
            objection = objection or "this engine knows salts by numbers the client cannot compute"
        if objection is not None:
            self.audit.event("lookup", found=False, rejection_reason=objection, kind="ladder")
            return None
        namespace = namespaces.of_request(self.setup.namespace, isolation)
        plan, ends = self._ladders.open(question, namespace)
        drawn = discovered(plan, request_id="ladder", namespace=namespaces.shown(namespace))
        self.audit.event(
            "lookup",
            found=ends is not None,
            similarity=plan.evidence.similarity,
            reuse_ratio=plan.reused_tokens / max(1, plan.prompt_tokens),
            rejection_reason=None if plan.reason is None else plan.reason.value,
            kind=drawn.kind.value,
            num_new_matched_tokens=plan.reused_tokens if ends is not None else 0,
            rungs=None if ends is None else len(ends) + 1,
        )
        return ends

    # -- offers ------------------------------------------------------------------------

    def _describe(self, request: UpstreamRequest) -> State:
        """The request's state, in the place of the one before if the engine asks anew."""
        number, tokens = int(request.request_id), prompt_of(request)
        ladder_id, namespace = self._whose(salt_of(request))
        before = self.states.get(number)
        if before is None:
            account = self._settlements.accounts.open(str(number), prompt_tokens=len(tokens))
        else:
            self._withdraw(before)  # its allocation was destroyed: it starts anew
            before.handle.replaced = True
            account = before.account
        arrival = Arrival(
            request_id=account.request_id,
            handle=Blocks(request=request, number=number),
            tokens=tokens,
            namespace=namespace,
            ladder_id=ladder_id,
            refusal=request_refusal(request),
        )
        state = self.states[number] = Request(arrival, account)
        return state

    def _whose(self, salt: Salt | None) -> tuple[str | None, Namespace]:
        """The ladder a salt belongs to, and the namespace of whoever has it."""
        if salt is None:
            return None, Namespace()  # nobody's: it matches nothing
        self._salts_by_number = salt.by_number
        if salt.by_number:
            ladder_id = self._ladders.id_of_number(salt.number)
            isolation = namespaces.isolation_by_number(salt.number)
        else:
            user_salt, ladder_id = split_salt(salt.text)
            isolation = by_salt(user_salt)
        if ladder_id is not None:
            return ladder_id, self._ladders.namespace_of(ladder_id) or Namespace()
        return None, namespaces.of_request(self.setup.namespace, isolation)

    def _plan(self, state: State, computed_tokens: int) -> Plan | None:
        if state.arrival.refusal is not None:
            state.decline(DeclineReason.UNSUPPORTED, state.arrival.refusal)
            return None
        if not state.namespace.is_complete:
            state.decline(DeclineReason.INCOMPLETE_NAMESPACE)
            return None
        if state.ladder_id is not None:
            return self._ladders.supply(state.ladder_id, state.tokens, computed_tokens)
        return self.provider.exact(
            state.tokens, state.namespace, exact_tokens=computed_tokens, account=state.account
        )

    def _may_offer(self, state: State, plan: Plan, computed_tokens: int) -> bool:
        if not plan.executable or not self.setup.may_load or self._link.refusals:
            return False
        if not self._link.token_bytes:
            return False  # no pool was registered
        whole = computed_tokens % self.setup.block_size == 0
        fits = computed_tokens < plan.end < len(state.tokens)
        contiguous = plan.copies and plan.copies[0].target_start == computed_tokens
        return bool(whole and fits and contiguous and not plan.holes)

    def _offer(self, state: State, plan: Plan, computed_tokens: int) -> tuple[int, bool]:
        if not self._captures.budget.pin(plan.donor_ids):
            state.account.decline(DeclineReason.DONOR_GONE)
            self._settlements.looked_up(state, plan.declined(DeclineReason.DONOR_GONE), 0)
            return NOTHING
        threshold = self.setup.options.async_load_tokens
        offered = plan.end - computed_tokens
        state.make_claim(plan)
        state.handle.asynchronous = threshold is not None and offered >= threshold
        state.account.claimed(plan)
        self._settlements.looked_up(state, plan, offered)
        return offered, state.handle.asynchronous

    def _dispatch(self, state: State, plan: Plan, block_ids: tuple[int, ...]) -> None:
        size = self.setup.block_size
        command = LoadCommand(
            load_id=next(self._numbers),
            request_id=state.handle.number,
            block_ids=block_ids,
            start=state.exact_tokens,
            end=plan.end,
            spans=plan.copies,
            tokens=state.tokens[: plan.end],
            plan=dispatched(
                plan,
                request_id=state.request_id,
                namespace=namespaces.shown(state.namespace),
                block_ids=block_ids,
                block_size=size,
                layers=self._link.layers,
                request_local=state.ladder_id is not None,
            ),
            asynchronous=state.handle.asynchronous,
        )
        self._orders.append(command)
        self._loads[command.load_id] = _Load(state=state, plan=plan)
        state.admitted()
        if state.ladder_id is not None:
            self._ladders.dispatched(state.ladder_id)
        blocks = block_ids[command.start // size : command.end // size]
        self.audit.event(
            "target_allocated", state.request_id, blocks=len(blocks), start=command.start
        )
        self.audit.event(
            "plan_dispatched",
            state.request_id,
            kind=command.plan.kind.value,
            publication_policy=command.plan.publication_policy.value,
            covered_token_count=command.plan.covered_token_count,
            prefix_token_count=command.plan.prefix_token_count,
            donor_ids=list(plan.donor_ids),
            asynchronous=command.asynchronous,
            plan=command.plan.to_dict(),
        )

    def _withdraw(self, state: State) -> None:
        """A request that ends takes back orders that no rank has seen, and its offer."""
        for command in [one for one in self._orders if one.request_id == state.handle.number]:
            self._orders.remove(command)
            load = self._loads.pop(command.load_id)
            self._captures.unpin(load.plan.donor_ids)
            if state.ladder_id is not None:
                self._ladders.answered(state.ladder_id, 0, "cancelled before it was loaded")
            state.released()
        if state.stage is Stage.CLAIMED and state.claim is not None:
            self._captures.unpin(state.claim.plan.donor_ids)
            state.withdraw()

    def announces(self, subject: str) -> None:
        """Donors are handed to the fleet's publisher from now on."""
        self._captures.announces = subject
        self.audit.event(
            "contract_event_published",
            kind="provider_generation_reset",
            state="handed_to_publisher",
            subject=subject,
        )

    # -- donors ------------------------------------------------------------------------

    def _capture(self, data: RequestData) -> CaptureCommand | None:
        state = self.states.get(int(data.request_id))
        if state is None or not finishes_prompt(state, data) or not state.decide_capture():
            return None
        if not self.setup.may_capture or self._link.refusals or not self._link.token_bytes:
            self._captures.discover(state)
            return None
        self._captures.budget.set_token_bytes(self._link.token_bytes)
        return self._captures.order(state, state.handle.block_ids)

    # -- answers -----------------------------------------------------------------------

    def settle(self) -> None:
        """Look at what the ranks have answered; every call from the engine does this first."""
        with self._lock:
            self._settle()

    def _settle(self) -> None:
        for event, fields in self._link.take_notes():
            self.audit.event(event, **fields)
        for report in self._link.take():
            for load_id, failure in report.loads.items():
                with beside("settle a load"):
                    self._answered(self._loads.pop(load_id, None), failure)
            for capture_id, failure in report.captures.items():
                with beside("settle a donor"):
                    self._captures.settle(capture_id, failure)

    def _answered(self, load: _Load | None, failure: str | None) -> None:
        if load is None:
            return
        state, plan = load.state, load.plan
        self._captures.unpin(plan.donor_ids)
        if state.ladder_id is not None:
            self._ladders.answered(state.ladder_id, plan.reused_tokens, failure)
        if not state.handle.replaced:  # else what was loaded is gone with the allocation
            self._settlements.answered(state, plan, failure, layers=self._link.layers)

    def close(self) -> None:
        """Stop the threads and close the audit file."""
        self.settle()
        self.provider.close()
        self.audit.close()
