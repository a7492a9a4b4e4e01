"""The connector in the leader's scheduler: the shared side, as TensorRT-LLM calls it.

Call order, as TensorRT-LLM makes it: `matched_tokens` once for a request, `allocated` with
its blocks, `build_meta` once a step, `request_finished`. What the ranks did comes back
through the link and is looked at whenever one of these is called.

An ordinary request is offered its identical prefix only: TensorRT-LLM publishes what a
connector loaded as exact K/V, and that is exact. Spans from elsewhere are offered to
rungs of a ladder alone, whose salt nobody else has. What is offered cannot be taken back.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from typing import Any

from semblend.core.namespace import Namespace
from semblend.core.outcomes import DeclineReason, Outcome
from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.integration.ladder_desk import LadderQuestion, Ladders
from semblend.integration.modes import Mode
from semblend.integration.scheduler.engine_planner import PlanRewriter
from semblend.integration.scheduler.leader_side import LeaderSide
from semblend.integration.scheduler.port import Step
from semblend.integration.scheduler.request import Request
from semblend.integration.scheduler.settlement import beside
from semblend.integration.trtllm import namespaces
from semblend.integration.trtllm.fleet import announce
from semblend.integration.trtllm.interfaces import RequestData, SchedulerOutput, UpstreamRequest
from semblend.integration.trtllm.metadata import ConnectorMeta, name_of
from semblend.integration.trtllm.scheduler_port import TrtRequest, TrtScheduler
from semblend.integration.trtllm.semantic_plan import (
    SemanticKvPlan,
    discovered,
    dispatched,
    evidence,
)
from semblend.integration.trtllm.setup import TrtSetup

logger = logging.getLogger("semblend.trtllm")

NOTHING = (0, False)


class TrtSchedulerSide(LeaderSide[TrtRequest]):
    """The executor's thread and ladder clients call it, one at a time."""

    def __init__(self, setup: TrtSetup, *, rewrite: PlanRewriter | None = None) -> None:
        self.setup = setup
        ladders = Ladders(self._segmented, block_size=setup.scheduler.block_size)
        self._port = TrtScheduler(setup.scheduler.namespace, ladders)
        super().__init__(
            setup.scheduler,
            self._port,
            link=setup.scheduler.link,
            ladders=ladders,
            host_donor_bytes=setup.options.host_donor_bytes,
            rewrite=rewrite,
        )
        self._live: dict[int, TrtRequest] = {}
        self._attempts = itertools.count(2)
        self.audit.event("scheduler_initialized", **setup.described())
        self.announcer = announce(self.planner.pipeline, setup)
        if self.announcer is not None:
            self._announced("provider_generation_reset")

    # -- a request ---------------------------------------------------------------------

    def matched_tokens(self, request: UpstreamRequest, computed_tokens: int) -> tuple[int, bool]:
        """Tokens supplied behind `computed_tokens`, and whether the request waits for them."""
        with self._lock:
            try:
                self.settle()
                handle = self._asked(request)
                self.shared.matched_tokens(handle, computed_tokens)
                known = self.shared.requests.get(handle.name)
                if known is None:
                    return NOTHING
                handle.offered = self.offer(known, computed_tokens)
                threshold = self.setup.options.async_load_tokens
                handle.parks = threshold is not None and handle.offered >= threshold
                self._looked_up(known)
                return handle.offered, handle.parks
            except Exception as error:
                logger.warning("SemBlend lookup failed; computed cold", exc_info=True)
                self.audit.event("lookup_error", detail=repr(error))
                failed = self._live.get(int(request.request_id))
                if failed is not None:
                    self.take_no_offer(failed, type(error).__name__)
                return NOTHING

    def allocated(self, request: UpstreamRequest, block_ids: list[int]) -> None:
        """The blocks of a request are known."""
        with self._lock:
            handle = self._live.get(int(request.request_id))
            if handle is None:
                return
            handle.request = request  # the engine's own object, not the one C++ asked with
            handle.block_ids = tuple(int(block) for block in block_ids)
            plan = self._dispatched(self.shared.requests[handle.name]) if handle.offered else None
            self.shared.allocated(handle.name, lambda: handle.block_ids, handle.offered)
            if plan is not None:
                with beside("say what was dispatched"):
                    self._say_dispatched(handle, plan)

    def build_meta(self, scheduled: SchedulerOutput) -> ConnectorMeta:
        """This step's orders to every rank."""
        with self._lock:
            self.settle()
            meta = ConnectorMeta()
            self.shared.fill(meta, Step(idle=False, computes=self._computes(scheduled)))
            for command in meta.loads:
                known = self.shared.requests.get(command.request_id)
                if known is not None and known.handle.parks:
                    meta.parked.add(command.request_id)
                if known is not None and known.ladder_id is not None:
                    meta.private.add(command.request_id)
            self.shared.stats.reset()  # TensorRT-LLM shows no metrics of a connector
            return meta

    def request_finished(self, request: UpstreamRequest) -> bool:
        """A request ends; True keeps its blocks until they are copied."""
        with self._lock:
            self.settle()
            handle = self._live.pop(int(request.request_id), None)
            if handle is None:
                return False
            if handle.offered and not handle.ordered:
                account = self.shared.requests[handle.name].account
                account.failed(DeclineReason.CANCELLED, "ended before it was loaded")
            self.take_back(handle)
            self.end(handle)
            return self.shared.is_capturing(handle.name)

    # -- offers ------------------------------------------------------------------------

    def _asked(self, request: UpstreamRequest) -> TrtRequest:
        """The request's handle, in the place of the one before if the engine asks anew."""
        number = int(request.request_id)
        before, name = self._live.get(number), name_of(number, 1)
        if before is not None or name in self.shared.requests or name in self.relied_on:
            name = name_of(number, next(self._attempts))
        handle = TrtRequest(request, name)
        if before is not None:  # its allocation was destroyed: it starts anew
            self.take_back(before)
            self.shared.start_over(before.name, handle)
            self._port.forget(before.name)
        else:
            self.shared.arrived(handle)
        if name in self.shared.requests:
            self._live[number] = handle
        return handle

    def _looked_up(self, request: Request[TrtRequest]) -> None:
        """What was found for a request, and what of it was offered: evidence, not reuse."""
        why, said = request.arrival.refusal, request.account.reason
        if why is None and not request.namespace.is_complete:
            why = DeclineReason.INCOMPLETE_NAMESPACE.value
        if why is None and not request.handle.offered:
            why = "nothing_to_offer" if said is None else said.value
        self.audit.event(
            "lookup",
            request.request_id,
            **evidence(request.plan, why),
            kind="ladder_rung" if request.ladder_id is not None else self.shared.setup.mode.value,
            num_new_matched_tokens=request.handle.offered,
            num_computed_tokens=request.exact_tokens,
            prompt_tokens=len(request.tokens),
        )

    def _dispatched(self, request: Request[TrtRequest]) -> SemanticKvPlan | None:
        """The load about to be ordered; one that breaks an invariant fails on purpose."""
        request.handle.ordered = True
        if request.ladder_id is not None:
            self.ladders.dispatched(request.ladder_id)
        try:
            if request.claim is None:
                return None  # withdrawn since: the engine waits for it all the same
            return dispatched(
                request.claim.plan,
                request_id=request.request_id,
                namespace=namespaces.shown(request.namespace),
                block_ids=request.handle.block_ids,
                block_size=self.setup.scheduler.block_size,
                layers=self._link.layers,
                request_local=request.ladder_id is not None,
            )
        except Exception:
            logger.warning("SemBlend refuses its own plan", exc_info=True)
            request.withdraw()
            return None

    def _say_dispatched(self, handle: TrtRequest, plan: SemanticKvPlan) -> None:
        start = plan.computed_token_count
        size = self.setup.scheduler.block_size
        blocks = (plan.prefix_token_count - start) // size
        self.audit.event("target_allocated", handle.name, blocks=blocks, start=start)
        self.audit.event(
            "plan_dispatched",
            handle.name,
            kind=plan.kind.value,
            publication_policy=plan.publication_policy.value,
            covered_token_count=plan.covered_token_count,
            prefix_token_count=plan.prefix_token_count,
            donor_ids=list(plan.donor_ids),
            asynchronous=handle.parks,
            plan=plan.to_dict(),
        )

    def _computes(self, scheduled: SchedulerOutput) -> Iterable[tuple[str, int]]:
        """Requests whose prompts this step finishes, with all of their tokens."""
        seen: Iterable[Iterable[RequestData]] = (
            getattr(scheduled, name, ()) for name in ("new_requests", "cached_requests")
        )
        for data in itertools.chain.from_iterable(seen):
            handle = self._live.get(int(data.request_id))
            known = None if handle is None else self.shared.requests.get(handle.name)
            if known is not None and known.handle.finishes_prompt(len(known.tokens), data):
                yield known.request_id, len(known.tokens)

    # -- ladders -----------------------------------------------------------------------

    def _segmented(self, tokens: TokenArray, namespace: Namespace) -> Plan:
        return self.planner.plan(tokens, namespace, exact_tokens=0, mode=Mode.SEGMENTED)

    def open_ladder(self, question: LadderQuestion) -> list[int] | None:
        """Ends of the rungs to climb, or None, and a record of why."""
        objection = self.setup.ladder_objection
        if self._port.salts_by_number and question.salt_id is None:
            objection = objection or "this engine knows salts by numbers the client cannot compute"
        if objection is not None:
            self.audit.event("lookup", found=False, rejection_reason=objection, kind="ladder")
            return None
        namespace = self._port.of_salt(question.user_salt, question.user_salt_id)
        plan, ends = self.ladders.open(question, namespace)
        drawn = discovered(plan, request_id="ladder", namespace=namespaces.shown(namespace))
        self.audit.event(
            "lookup",
            **{**evidence(plan), "found": ends is not None},
            kind=drawn.kind.value,
            num_new_matched_tokens=plan.reused_tokens if ends is not None else 0,
            rungs=None if ends is None else len(ends) + 1,
        )
        return ends

    # -- answers -----------------------------------------------------------------------

    def kept(self, donor_id: str) -> None:
        """Every rank holds a donor that can be found."""
        if self.announcer is not None:
            self._announced("donor_registered", donor_id=donor_id)

    def gone(self, handle: TrtRequest) -> None:
        """A request is no longer known here."""
        self._port.forget(handle.name)

    def loaded(self, request: Request[TrtRequest], plan: Plan, failure: str | None) -> None:
        """Every rank has answered a live request's load."""
        settlement = request.account.settlement
        if settlement is None or (settlement.outcome is not Outcome.MATERIALISED and not failure):
            return  # the ledger did not take it
        size = self.setup.scheduler.block_size
        self.audit.event(
            "materialized",
            request.request_id,
            materialized=0 if failure else (plan.end - request.exact_tokens) // size,
            materialized_tokens=0 if failure else plan.reused_tokens,
            layers=self._link.layers,
            requires_rope_correction=any(span.delta for span in plan.copies),
            reason=failure,
            policy=plan.policy,
        )

    def _announced(self, kind: str, **fields: Any) -> None:
        self.audit.event(
            "contract_event_published",
            kind=kind,
            state="handed_to_publisher",
            subject=self.setup.scheduler.settings.nats_subject,
            **fields,
        )
