"""The connector in the scheduler's process: claims, orders to the workers, settlement.

Call order in a step, as vLLM makes it: `on_new_request` when one arrives;
`matched_tokens` for each waiting request that may start; `allocated` for those that
do; `build_meta` once; then, with the workers' answer, `request_finished` for those
that end and `update` after that. A request with a claim is first scheduled in a step
after the one whose `update` heard how its load ended, so only an aborted request can
be gone before that.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.integration.audit import AuditStream
from semblend.integration.gauges import pipeline_gauges
from semblend.integration.vllm import namespaces
from semblend.integration.vllm.block_hashes import PrivateChain
from semblend.integration.vllm.bridge import PlannerBridge
from semblend.integration.vllm.capture_orders import CaptureOrders
from semblend.integration.vllm.claims import NOTHING, Answer, Claims
from semblend.integration.vllm.exchange import RemoteDonors
from semblend.integration.vllm.held_blocks import HeldBlocks
from semblend.integration.vllm.intake import describe, impossible_load
from semblend.integration.vllm.meaning import MeaningThread
from semblend.integration.vllm.metadata import ConnectorMeta, LoadCommand, WorkerReport
from semblend.integration.vllm.modes import Execution
from semblend.integration.vllm.prefill_clock import PrefillClock
from semblend.integration.vllm.request_state import (
    Progress,
    RequestState,
    probes,
)
from semblend.integration.vllm.settlement import Settlements
from semblend.integration.vllm.setup import SchedulerSetup
from semblend.integration.vllm.shadow_orders import ShadowOrders
from semblend.integration.vllm.staged import StagedClaims
from semblend.integration.vllm.stats import SemBlendStats
from semblend.integration.vllm.weights import WEIGHTS_CHANGED, WEIGHTS_WARNING
from semblend.planning.depth import table_for

logger = logging.getLogger("vllm.semblend")

_FINISHED_NORMALLY = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_REPETITION")


class SchedulerSide:
    """Owns the requests as the scheduler sees them. One thread calls it."""

    def __init__(self, setup: SchedulerSetup) -> None:
        self.setup = setup
        options = setup.options
        self.audit = AuditStream(engine="vllm", logger=logger, **options.audit)
        self.stats = SemBlendStats()
        self.bridge = PlannerBridge(
            settings=setup.settings,
            mode=options.mode,
            block_size=setup.block_size,
            ranks=setup.ranks,
            cost=setup.cost,
            standing=setup.standing,
            probes=options.mode.segmented and options.execution is Execution.NESTED,
            boundaries=setup.boundaries,
        )
        self._meaning = MeaningThread.start_if_wanted(setup, self.bridge, self.audit)
        self._staged = StagedClaims(bridge=self.bridge, block_size=setup.block_size)
        self.claims = Claims(
            bridge=self.bridge,
            options=options,
            audit=self.audit,
            stats=self.stats,
            staged=self._staged,
            hole_budget=setup.hole_budget,
            may_load=setup.may_load,
        )
        self._captures = CaptureOrders(
            setup=setup, bridge=self.bridge, audit=self.audit, stats=self.stats
        )
        self._settlements = Settlements(
            ledger=self.bridge.pipeline.ledger, audit=self.audit, stats=self.stats
        )
        self.shadows = ShadowOrders.start_if_wanted(setup, self.stats)
        if self.shadows is not None:
            self.claims.objection = self._objection
        self.clock = PrefillClock(setup.cost)
        self.remote: RemoteDonors | None = None
        self.manager: Any = None
        self.states: dict[str, RequestState] = {}
        self._claimed: set[str] = set()
        self._orders: list[LoadCommand] = []
        self._held = HeldBlocks()
        self._sampled: set[str] = set()
        """Requests that end in this very call and whose blocks a sample needs once more."""
        self._drop_all = False
        self._weights_epoch = 0

    def fetch_from(self, remote: RemoteDonors) -> None:
        """Share donors with other machines, and have theirs brought where that pays."""
        self.remote = self.claims.remote = remote
        self._captures.share = remote.share

    # -- a request arrives and is scheduled ------------------------------------------

    def new_request(self, request: Any) -> RequestState:
        """Take note of a request."""
        state = describe(request, self.setup, self._settlements.accounts)
        self.states[state.request_id] = state
        self.audit.event("request_first_seen", state.request_id, prompt_tokens=len(state.tokens))
        return state

    def matched_tokens(self, request: Any, computed_tokens: int) -> Answer:
        """How many tokens behind `computed_tokens` this connector supplies. Never raises."""
        state: RequestState | None = None
        try:
            state = self.states.get(request.request_id) or self.new_request(request)
            state.undo_claim()
            self._claimed.discard(state.request_id)
            live = (other.request for other in self.states.values())
            answer = self.claims.claim(state, computed_tokens, live=live)
            if state.progress is Progress.CLAIMED:
                self._claimed.add(state.request_id)
            return answer
        except Exception as error:
            logger.warning("SemBlend lookup failed; computed cold", exc_info=True)
            if state is not None:
                state.undo_claim()
                state.decline(DeclineReason.INTERNAL_ERROR, type(error).__name__)
                self.audit.event("lookup_error", state.request_id, detail=repr(error))
            return NOTHING

    def allocated(self, request: Any, blocks: Any, external_tokens: int) -> None:
        """The engine allocated slots; `external_tokens` of them are to be supplied."""
        state = self.states.get(request.request_id)
        if state is None:
            return
        state.started = True
        if external_tokens == 0:
            if state.progress is Progress.CLAIMED:
                state.decline(DeclineReason.NOT_WORTH_IT, "the engine did not take the offer")
            self.clock.started(state.request_id, state.exact_tokens)
            return  # a claim that was not taken is undone when the step is built
        (block_ids,) = blocks.get_block_ids()
        orders = len(self._orders)
        try:
            self._order_load(state, block_ids, external_tokens)
        except Exception:
            # The engine waits for these tokens by now: a load that fails makes it compute them.
            logger.warning("SemBlend could not order a load", exc_info=True)
            self._orders[orders:] = [impossible_load(state, block_ids, external_tokens)]

    def _order_load(self, state: RequestState, block_ids: list[int], external_tokens: int) -> None:
        plan = state.claim
        if plan is None or state.progress is not Progress.CLAIMED:
            self._orders.append(impossible_load(state, block_ids, external_tokens))
            return
        command = LoadCommand(
            request_id=state.request_id,
            block_ids=tuple(block_ids),
            tokens=state.tokens,
            start=state.claim_end - external_tokens,
            end=state.claim_end,
            copies=plan.copies,
            holes=plan.holes,
            refine=plan if probes(plan) else None,
            depth_table=table_for(plan.policy, self.setup.standing.depth_table),
        )
        self._admit(state, plan, command)

    def _admit(self, state: RequestState, plan: Plan, command: LoadCommand) -> None:
        self._claimed.discard(state.request_id)
        self._make_private(state, plan)
        self._orders.append(command)
        state.progress = Progress.ADMITTED
        state.claimed_blocks = len(command.claimed_blocks(self.setup.block_size))
        self.claims.admitted(state)
        self.audit.event(
            "load_allocated", state.request_id, blocks=state.claimed_blocks, start=command.start
        )
        self.audit.materialising(
            state.request_id, donor_id=",".join(plan.donor_ids), tokens=command.reused_tokens
        )

    def _make_private(self, state: RequestState, plan: Plan) -> None:
        """Before any block of an approximate load can be published: that is when it has ended."""
        approximate = plan.first_approximate_token
        if approximate is not None and state.ladder_id is None and state.chain is None:
            # A ladder's blocks are private already: nobody else has its salt.
            state.chain = PrivateChain(
                state.request,
                first_approximate_token=approximate,
                hash_block_size=self.setup.hash_block_size,
            )
        state.tainted = state.tainted or approximate is not None or state.ladder_id is not None

    def build_meta(self, scheduled: Any) -> ConnectorMeta:
        """This step's orders to the workers; what was claimed and not taken is undone.

        Never raises: the engine waits for the loads, so they go out whatever else fails.
        """
        idle = scheduled.total_num_scheduled_tokens == 0
        meta = ConnectorMeta(
            loads=self._orders,
            held=self._held.take_new(),
            preempted=sorted({*(scheduled.preempted_req_ids or ()), *self._held.take_let_go()}),
            drop_all=self._drop_all,
            weights_epoch=self._weights_epoch,
            idle=idle,
        )
        self._orders, self._drop_all = [], False
        try:
            self._undo_claims()
            meta.captures = self._captures.orders(scheduled, self.states, self.manager)
            meta.dropped = self.bridge.take_dropped()
            if self.remote is not None:
                meta.fetches = self.remote.take_fetches()
            if self.shadows is not None:
                meta.shadows = self.shadows.orders(idle=idle, manager=self.manager)
                meta.shadows_dropped = self.shadows.take_dropped()
            self._time_prefills(meta.preempted)
            self.stats.count("donors_dropped", len(meta.dropped))
        except Exception:
            logger.warning("SemBlend could not order all of a step", exc_info=True)
        return meta

    def _undo_claims(self) -> None:
        """Claims that the step being built did not take."""
        for request_id in self._claimed:
            state = self.states.get(request_id)
            if state is not None:
                state.undo_claim()
                self.audit.event("load_dropped_before_alloc", request_id)
        self._claimed.clear()
        self.claims.next_step()

    def _time_prefills(self, preempted: Sequence[str]) -> None:
        for request_id in preempted:
            self.clock.forget(request_id)
        for request_id, tokens in self._captures.finished:
            self.clock.finishes(request_id, tokens)

    # -- the workers answer ------------------------------------------------------------

    def request_finished(
        self, request: Any, block_ids: Sequence[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """A request ends; True keeps its blocks until its capture and its sample are done."""
        try:
            report = self._finish(request, block_ids)
        except Exception:
            logger.warning("SemBlend could not settle a request", exc_info=True)
            report = None
        return self._hold_blocks(request), report

    def _finish(self, request: Any, block_ids: Sequence[int]) -> dict[str, Any] | None:
        state = self.states.pop(request.request_id, None)
        if state is None:
            return None
        self.clock.step_done()
        self.clock.forget(state.request_id)
        if self.remote is not None:
            self.remote.forget(state.request_id)
        state.undo_claim()
        self._claimed.discard(state.request_id)
        # A request that resumes was confirmed before it was preempted.
        confirmed = state.progress is Progress.CONFIRMED or state.resumes
        self._settlements.ended(state)
        self.audit.settled(
            state.account.settlement,
            namespace=namespaces.shown(state.namespace),
            tenant=state.namespace.tenant,
            seconds_per_unit=self.clock.seconds_per_unit,
            ranks=self.setup.ranks,
        )
        self._staged.ended(state)
        if self._meaning is not None and state.refusal is None and state.ladder_id is None:
            self._meaning.look_up(state.request_id, state.tokens, state.namespace)
        if confirmed and state.tainted and state.ladder_id is None:
            self._sample(state, block_ids)
        return {"semblend": state.report(confirmed=confirmed, certified=self.setup.certified)}

    def _sample(self, state: RequestState, block_ids: Sequence[int]) -> None:
        """Have some reused requests computed cold too, if they ended as they should."""
        if self.shadows is None or state.request.status.name not in _FINISHED_NORMALLY:
            return
        key = self.bridge.pipeline.share_key(state.namespace)
        if self.shadows.take(state, key, tuple(block_ids)):
            self._sampled.add(state.request_id)

    def _objection(self, state: RequestState) -> str | None:
        if self.shadows is None or not state.namespace.is_complete:
            return None
        return self.shadows.watch.objection(self.bridge.pipeline.share_key(state.namespace))

    def _hold_blocks(self, request: Any) -> bool:
        request_id = str(request.request_id)
        sampled = request_id in self._sampled
        self._sampled.discard(request_id)
        if not sampled and not self._captures.is_pending(request_id):
            return False
        self._held.hold(request)
        return True

    @property
    def has_held_blocks(self) -> bool:
        """Whether finished requests' blocks will be freed without anything else happening."""
        return bool(self._held)

    def update(self, report: WorkerReport | None, freed: set[str] | None) -> None:
        """Settle what the workers report."""
        self.clock.step_done()
        self._held.freed(freed or ())
        if report is None:
            return
        if report.weights_epoch > self._weights_epoch:
            self._weights_changed(report.weights_epoch)
        for request_id, failure in report.failed.items():
            if failure.donor_id is not None:
                self.bridge.drop(failure.donor_id)
            state = self.states.get(request_id)
            if state is not None:
                state.load_failed()
                self._settlements.failed(state, failure)
        for request_id, ranks in report.loaded.items():
            state = self.states.get(request_id)
            if state is None or request_id in report.failed or ranks < self.setup.ranks:
                continue
            state.load_ended_well(report.refined.get(request_id))
            self._staged.confirmed(state)
            self._settlements.confirmed(state, layers=report.layers)
        if report.loaded or report.failed:
            self.stats.time("load", report.load_ms / 1e3)
            self.stats.time("nested", report.nested_ms / 1e3)
        self._captures.settle(report)
        if self.shadows is not None:
            self.shadows.settle(report, self.manager)
        if self.remote is not None:
            self.remote.settle(report)

    # -- housekeeping ------------------------------------------------------------------

    def hit_sources(self, request_id: str, external_tokens: int) -> tuple[int, int]:
        """Of the claimed tokens, how many donors supply and how many are computed."""
        state = self.states.get(request_id)
        reused = 0 if state is None or state.claim is None else state.claim.reused_tokens
        reused = min(reused, external_tokens)
        return reused, external_tokens - reused

    def take_stats(self) -> SemBlendStats | None:
        """Statistics since the last call."""
        if self.stats.is_empty():
            return None
        self.stats.gauges(self._gauges())
        taken = SemBlendStats(data=self.stats.data)
        self.stats.reset()
        return taken

    def _gauges(self) -> dict[str, float]:
        gauges = pipeline_gauges(
            self.bridge.pipeline,
            self.setup.standing,
            loading=self.claims.may_load,
            captures_waiting=self.bridge.pending,
        )
        if self.shadows is not None:
            gauges["suspended_namespaces"] = self.shadows.watch.stats().suspended
            gauges["shadow_waiting"] = self.shadows.waiting
        return gauges

    @property
    def has_pending_work(self) -> bool:
        """Whether the engine should step on although no request waits for it."""
        moving = self.remote is not None and self.remote.has_pending_work
        return moving or (self.shadows is not None and self.shadows.has_pending_work)

    def let_go_of_blocks(self) -> None:
        """The engine wants every block back at once: samples end. Never raises."""
        try:
            if self.shadows is not None:
                self.shadows.clear(self.manager)
            self._held.let_go(self.manager)
        except Exception:
            logger.warning("SemBlend could not let go of blocks", exc_info=True)

    def reset(self) -> None:
        """Forget every donor, here and in the workers; what shadow samples objected to is over."""
        if self.shadows is not None:
            self.shadows.clear(self.manager)
            self.shadows.watch.resume()
        self.bridge.clear()
        self._drop_all = True
        if self.remote is not None:
            self.remote.stop()

    def _weights_changed(self, epoch: int) -> None:
        """Nothing is loaded or kept until the next start: nobody knows the new weights.

        Requests and vLLM's own prefix cache may hold K/V of both.
        """
        if not self._weights_epoch:
            logger.warning(WEIGHTS_WARNING)
        self._weights_epoch = epoch
        self.reset()
        if self.setup.options.mode.loads:
            self.claims.stop(WEIGHTS_CHANGED)
            self._captures.stop(WEIGHTS_CHANGED)

    def close(self) -> None:
        """Stop the threads and close the audit file."""
        if self._meaning is not None:
            self._meaning.close()
        self.bridge.close()
        self.audit.close()
