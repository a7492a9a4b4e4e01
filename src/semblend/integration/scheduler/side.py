"""An adapter in its engine's scheduler: claims, orders to the workers, settlement.

Call order in a step: `arrived` when the engine receives a request; `matched_tokens` for each
waiting request that may start; `allocated` for those that do; `fill` once; then, with the
workers' answer, `ended` for those that end and `update` after that. A request with a claim is
first scheduled in a step after the one whose `update` reported how its load ended, so only an
aborted request can be gone before that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Generic

from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.integration.auditing.audit_stream import AuditStream
from semblend.integration.gauges import pipeline_gauges
from semblend.integration.loaded_model import model_identity
from semblend.integration.probing import probes
from semblend.integration.scheduler.capture_orders import Captures
from semblend.integration.scheduler.claims import NOTHING, Claims
from semblend.integration.scheduler.engine_chains import ChainPort, EngineChains
from semblend.integration.scheduler.engine_planner import EnginePlanner, PlanRewriter
from semblend.integration.scheduler.held_blocks import HeldBlocks
from semblend.integration.scheduler.orders import (
    LoadCommand,
    LoadFailure,
    StepOrders,
    WorkerReport,
    impossible_load,
)
from semblend.integration.scheduler.parts import SchedulerParts
from semblend.integration.scheduler.port import EngineHandle, Loan, SchedulerPort, Step
from semblend.integration.scheduler.prefill_clock import PrefillClock
from semblend.integration.scheduler.promotions import Promotions
from semblend.integration.scheduler.rank_room import RankRoom
from semblend.integration.scheduler.remote_donors import RemoteDonors
from semblend.integration.scheduler.request import Claim, Request, Stage
from semblend.integration.scheduler.settlement import Settlements, beside
from semblend.integration.scheduler.setup import SchedulerSetup
from semblend.integration.scheduler.shadows import ShadowOrders
from semblend.integration.scheduler.similar_donors import MeaningThread
from semblend.integration.scheduler.staged import Rungs, StagedClaims
from semblend.integration.stats import Stats
from semblend.planning.depth import table_for
from semblend.planning.engine_times import PERFECT_HIT, EngineTimes, ever_pays, fitted_to

logger = logging.getLogger("semblend.adapter")

WEIGHTS_CHANGED = "the weights changed since the engine started"
WEIGHTS_WARNING = (
    "SemBlend: the weights changed under the running engine. No certificate speaks of the new "
    "ones, so that nothing is kept or reused any more; start anew for that."
)


RemoteMaker = Callable[[SchedulerParts], RemoteDonors | None]
"""Builds the exchange of donors with other machines, if this engine takes part."""


def _alone(_: SchedulerParts) -> None:
    return None


class SchedulerSide(Generic[EngineHandle]):
    """Owns the requests as the scheduler sees them. One thread calls it; nothing raises."""

    def __init__(
        self,
        setup: SchedulerSetup,
        port: SchedulerPort[Any, EngineHandle],
        *,
        make_remote: RemoteMaker = _alone,
        rewrite: PlanRewriter | None = None,
        rungs: Rungs | None = None,
        room: RankRoom | None = None,
        chain_port: ChainPort | None = None,
    ) -> None:
        """Start with no requests and no donors.

        Parameters
        ----------
        rungs
            Ladders in progress; by default those that clients ask for in their requests.
        room
            Who makes room for donors on the ranks; by default they do.
        chain_port
            The names of the engine's cached blocks, where conversations can continue.
        """
        self.setup = setup
        self._port = port
        self.audit = AuditStream(engine=setup.engine, logger=setup.logger, **setup.audit)
        self.stats = Stats()
        self.clock = PrefillClock(setup.cost)
        self._room = RankRoom() if room is None else room
        self.planner = EnginePlanner(
            settings=setup.settings,
            mode=setup.mode,
            block_size=setup.block_size,
            ranks=setup.ranks,
            cost=setup.cost,
            standing=setup.standing,
            can_run=setup.can_run,
            boundaries=setup.boundaries,
            rewrite=rewrite,
            forgotten=self._room.forgotten,
        )
        self.remote = make_remote(
            SchedulerParts(
                setup=setup,
                planner=self.planner,
                audit=self.audit,
                stats=self.stats,
                clock=self.clock,
            )
        )
        self._meaning = self._start_meaning()
        self._staged: Rungs = (
            StagedClaims(planner=self.planner, block_size=setup.block_size)
            if rungs is None
            else rungs
        )
        self.shadows = self._start_shadows()
        self._claims = Claims(
            setup=setup,
            planner=self.planner,
            audit=self.audit,
            stats=self.stats,
            staged=self._staged,
            remote=self.remote,
            objection=self._objection,
        )
        self.chains = self._start_chains(chain_port)
        self._captures = Captures(
            setup=setup,
            planner=self.planner,
            audit=self.audit,
            stats=self.stats,
            blocks_of=port.blocks_of,
            register=self.planner.register if self._meaning is None else self._meaning.register,
            share=_not_shared if self.remote is None else self.remote.share,
            room=self._room,
        )
        self.promotions = self._start_promotions()
        self._settlements = Settlements(
            ledger=self.planner.pipeline.ledger, audit=self.audit, stats=self.stats
        )
        self.requests: dict[str, Request[EngineHandle]] = {}
        self._claimed: set[str] = set()
        self._loads: list[LoadCommand] = []
        self._held = HeldBlocks()
        self._drop_all = False
        self._weights_epoch = 0
        self._unfit = ""

    def _start_meaning(self) -> MeaningThread | None:
        """Lookup by meaning, where text is available and the settings ask for it."""
        if self.setup.make_decoder is None or not self.setup.settings.enabled:
            return None
        return MeaningThread(
            planner=self.planner, audit=self.audit, make_decoder=self.setup.make_decoder
        )

    def _start_shadows(self) -> ShadowOrders | None:
        """None where nothing approximate is loaded, no model is available, or the rate is 0."""
        setup, rate = self.setup, self.setup.settings.shadow_rate
        if not (setup.nested and setup.may_load and rate > 0):
            return None
        return ShadowOrders(
            port=self._port,
            rate=rate,
            block_size=setup.block_size,
            chunk_tokens=setup.step_tokens,
            stats=self.stats,
            keep=self._keep_sample,
        )

    def _start_chains(self, port: ChainPort | None) -> EngineChains | None:
        """None where nothing approximate is loaded, or where blocks have no names."""
        setup = self.setup
        turns = min(setup.chain_turns, setup.standing.chain_turns)
        if port is None or not (setup.nested and setup.may_load and turns > 1):
            return None
        return EngineChains(
            port=port,
            pipeline=self.planner.pipeline,
            block_size=setup.block_size,
            max_turns=turns,
            objection=self._chain_objection,
        )

    def _start_promotions(self) -> Promotions | None:
        if self.chains is None or not self.setup.promotes:
            return None
        return Promotions(
            chains=self.chains,
            port=self._port,
            block_size=self.setup.block_size,
            step_tokens=self.setup.step_tokens,
            donate=self._captures.promoted,
            is_donating=self._captures.is_pending,
            stats=self.stats,
        )

    # -- a request arrives and is scheduled ------------------------------------------

    def arrived(self, native: Any) -> None:
        """Take note of a request."""
        with beside("take note of a request"):
            self._arrived(native)

    def _arrived(self, native: Any) -> Request[EngineHandle]:
        arrival = self._port.arrival(native)
        account = self._settlements.accounts.open(
            arrival.request_id, prompt_tokens=len(arrival.tokens)
        )
        request = Request(arrival, account)
        self.requests[request.request_id] = request
        self.audit.first_seen(request.request_id, request.tokens)
        return request

    def without_chains(self) -> None:
        """The engine's cache is not as chains need it: continue and promote nothing."""
        self.chains = self.promotions = None

    def before_lookup(self, native: Any) -> None:
        """The engine is about to look for a waiting request's prefix in its own cache."""
        if self.chains is None:
            return
        with beside("look up a chain"):
            request = self.requests.get(self._port.request_id(native))
            if request is not None:
                self.chains.before_lookup(request)

    def matched_tokens(self, native: Any, computed_tokens: int) -> int | None:
        """How many tokens after `computed_tokens` are supplied; None means "ask again"."""
        request: Request[EngineHandle] | None = None
        try:
            request = self.requests.get(self._port.request_id(native)) or self._arrived(native)
            self._withdraw(request)
            live = (other.handle for other in self.requests.values())
            answer = self._claims.claim(request, computed_tokens, live=live)
            if request.stage is Stage.CLAIMED:
                self._claimed.add(request.request_id)
            return answer
        except Exception as error:
            logger.warning("SemBlend lookup failed; computed cold", exc_info=True)
            if request is not None:
                self._withdraw(request)
                request.decline(DeclineReason.INTERNAL_ERROR, type(error).__name__)
                self.audit.event("lookup_error", request.request_id, detail=repr(error))
            return NOTHING

    def _withdraw(self, request: Request[EngineHandle]) -> None:
        request.withdraw()
        self._claimed.discard(request.request_id)

    def allocated(
        self, request_id: str, block_ids: Callable[[], Sequence[int]], external_tokens: int
    ) -> None:
        """The engine allocated slots; `external_tokens` of them are to be supplied."""
        request = self.requests.get(request_id)
        if request is None:
            return
        request.started = True
        if external_tokens == 0:
            if request.stage is Stage.CLAIMED:
                request.decline(DeclineReason.NOT_WORTH_IT, "the engine did not take the offer")
            self.clock.started(request.request_id, request.placed_tokens)
            return  # a claim that was not taken is undone when the step is built
        blocks, orders = tuple(block_ids()), len(self._loads)
        try:
            self._order_load(request, blocks, external_tokens)
        except Exception:
            # The engine already waits for these tokens: a failing load makes it compute them.
            logger.warning("SemBlend could not order a load", exc_info=True)
            self._loads[orders:] = [_impossible(request, blocks, external_tokens)]

    def _order_load(
        self, request: Request[EngineHandle], block_ids: tuple[int, ...], external_tokens: int
    ) -> None:
        claim = request.claim
        if claim is None or request.stage is not Stage.CLAIMED:
            self._loads.append(_impossible(request, block_ids, external_tokens))
            return
        plan = claim.plan
        command = LoadCommand(
            request_id=request.request_id,
            block_ids=block_ids,
            tokens=request.tokens,
            start=claim.end - external_tokens,
            end=claim.end,
            copies=plan.copies,
            holes=plan.holes,
            refine=plan if probes(plan) else None,
            depth_table=table_for(plan.policy, self.setup.standing.depth_table),
            adapter=request.arrival.adapter,
        )
        self._admit(request, claim, command)

    def _admit(self, request: Request[EngineHandle], claim: Claim, command: LoadCommand) -> None:
        self._claimed.discard(request.request_id)
        self._make_private(request, claim.plan)
        self._loads.append(command)
        request.admitted()
        self._claims.admitted(request)
        blocks = len(command.claimed_blocks(self.setup.block_size))
        self.audit.event("load_allocated", request.request_id, blocks=blocks, start=command.start)
        self.audit.materialising(
            request.request_id,
            donor_id=",".join(claim.plan.donor_ids),
            tokens=command.reused_tokens,
        )

    def _make_private(self, request: Request[EngineHandle], plan: Plan) -> None:
        """Before any block of an approximate load can be published: that is when it has ended.

        A ladder's blocks are private already: no other request has its salt.
        """
        approximate = plan.first_approximate_token
        if approximate is not None and request.ladder_id is None:
            request.handle.make_private(approximate)
        request.taint()

    def take_back(self, request_id: str) -> bool:
        """Cancel a load that no rank has been told of; False if there is none."""
        left = [load for load in self._loads if load.request_id != request_id]
        found, self._loads = len(left) < len(self._loads), left
        return found

    def start_over(self, request_id: str, native: Any) -> None:
        """The engine destroyed a request's slots and asks again, under another name.

        What the ranks still answer to the old name is about slots that are gone.
        """
        arrival = self._port.arrival(native)
        before = self.requests.pop(request_id)
        self._withdraw(before)
        self.take_back(request_id)
        self.requests[arrival.request_id] = Request(arrival, before.account)

    def fill(self, orders: StepOrders, step: Step) -> None:
        """This step's orders to the workers; what was claimed and not taken is undone.

        The engine waits for the loads, so they are sent whatever else fails.
        """
        orders.loads, self._loads = self._loads, []
        orders.held = self._held.take_new()
        orders.preempted = sorted({*step.preempted, *self._held.take_let_go()})
        orders.drop_all, self._drop_all = self._drop_all, False
        orders.weights_epoch, orders.idle = self._weights_epoch, step.idle
        # Blocks that are held are held for this step: what reads them goes out with it or never.
        with beside("undo claims"):
            self._undo_claims()
        try:
            orders.captures = self._captures.orders(step.computes, self.requests)
        except Exception:
            logger.warning("SemBlend could not order captures", exc_info=True)
            self._captures.drop_unsent()
        with beside("order all of a step"):
            if self.shadows is not None:
                orders.shadows = self.shadows.orders(idle=step.idle)
                orders.shadows_dropped = self.shadows.take_dropped()
            if self.promotions is not None:
                orders.shadows += self.promotions.orders(idle=step.idle and not self.requests)
            orders.dropped = self._room.take_dropped()
            if self.remote is not None:
                orders.fetches = self.remote.take_fetches()
            self._time_prefills(orders.preempted)
            self.stats.count("donors_dropped", len(orders.dropped))

    def _undo_claims(self) -> None:
        """Claims that the step being built did not take."""
        for request_id in self._claimed:
            request = self.requests.get(request_id)
            if request is not None:
                request.withdraw()
                self.audit.event("load_dropped_before_alloc", request_id)
        self._claimed.clear()
        self._claims.next_step()

    def _time_prefills(self, preempted: Sequence[str]) -> None:
        for request_id in preempted:
            self.clock.forget(request_id)
        for request_id, tokens in self._captures.finished:
            self.clock.finishes(request_id, tokens)

    # -- the workers answer ------------------------------------------------------------

    def ended(self, native: Any, block_ids: Sequence[int]) -> tuple[bool, dict[str, Any] | None]:
        """A request ends; True keeps its blocks until its capture and its sample are done."""
        request_id = self._port.request_id(native)
        request = self.requests.pop(request_id, None)
        sampled, loading, report = False, False, None
        if request is not None:
            loading = request.stage is Stage.LOADING
            with beside("settle a request"):
                self._settle(request)
                self._captures.ended(request, block_ids)
                if self.chains is not None:
                    self.chains.keep(request)
                sampled = self._sample(request, block_ids)
                report = {"semblend": request.report(certified=self.setup.certified)}
            request.ended()
        # The engine keeps the blocks of a load until the workers have answered it, and frees them
        # once. Ahead of a second load they have ended the capture of the first.
        if loading or not (sampled or self._captures.is_pending(request_id)):
            return False, report
        self._held.hold(request_id, self._port.handle(native))
        return True, report

    def _settle(self, request: Request[EngineHandle]) -> None:
        self.clock.step_done()
        self.clock.forget(request.request_id)
        if self.remote is not None:
            self.remote.forget(request.request_id)
        self._withdraw(request)
        self._settlements.ended(request)
        self.audit.settled(
            request.account.settlement,
            namespace=model_identity.shown(self.setup.engine, request.namespace),
            tenant=request.namespace.tenant,
            seconds_per_unit=self.clock.seconds_per_unit,
            ranks=self.setup.ranks,
        )
        self._staged.ended(request)
        ordinary = request.arrival.refusal is None and request.ladder_id is None
        if self._meaning is not None and ordinary:
            self._meaning.look_up(request.request_id, request.tokens, request.namespace)

    def _sample(self, request: Request[EngineHandle], block_ids: Sequence[int]) -> bool:
        """Have some reused requests computed cold too, if they ended normally."""
        if not request.is_approximate or request.ladder_id is not None or self.shadows is None:
            return False
        if not request.handle.ended_normally:
            return False
        key = self._share_key(request)
        return self.shadows.take(request, key, tuple(block_ids))

    def _keep_sample(self, handle: Any, tokens: TokenArray, loan: Loan) -> None:
        if self.chains is not None and self.setup.promotes:
            with beside("keep what a sample has computed"):
                self.chains.publish(handle, tokens, loan.blocks)

    def _objection(self, request: Request[Any]) -> str | None:
        if self.shadows is None or (
            request.share_key is None and not request.namespace.is_complete
        ):
            return None
        return self.shadows.watch.objection(self._share_key(request))

    def _share_key(self, request: Request[Any]) -> bytes:
        if request.share_key is None:
            request.share_key = self.planner.pipeline.share_key(request.namespace)
        return request.share_key

    def _chain_objection(self, request: Request[Any]) -> str | None:
        return self._objection(request) if self._claims.may_load else "nothing is loaded"

    def is_capturing(self, request_id: str) -> bool:
        """Whether some rank still reads a request's blocks."""
        return self._captures.is_pending(request_id)

    @property
    def has_held_blocks(self) -> bool:
        """Whether finished requests' blocks will be freed without anything else happening."""
        return bool(self._held)

    def update(self, report: WorkerReport | None, freed: set[str] | None) -> None:
        """Settle what the workers report."""
        with beside("settle a step"):
            self.clock.step_done()
            self._claims.step_done()
            self._held.freed(freed or ())
            if report is None:
                return
            if report.weights_epoch > self._weights_epoch:
                self._weights_changed(report.weights_epoch)
            if report.engine_times is not None:
                with beside("plan with measured times"):
                    self._use_times(report.engine_times)
            if report.unfit and not self._unfit:
                self._unfit = report.unfit
                self._stop(f"the workers cannot load: {report.unfit}")
            for request_id, failure in report.failed.items():
                with beside("settle a load that failed"):
                    self._load_failed(request_id, failure)
            for request_id, ranks in report.loaded.items():
                if request_id not in report.failed and ranks >= self.setup.ranks:
                    with beside("settle a load"):
                        self._load_ended_well(request_id, report)
            if report.clipped:
                self.stats.count("clipped_numbers", report.clipped)
            if report.replayed:
                self.stats.count("replayed_passes", report.replayed)
            if report.loaded or report.failed:
                self.stats.time("load", report.load_ms / 1e3)
                self.stats.time("nested", report.nested_ms / 1e3)
            with beside("settle captures"):
                self._captures.settle(report)
            if self.shadows is not None:
                with beside("settle samples"):
                    self.shadows.settle(report)
            if self.promotions is not None:
                self.promotions.settle(report)
            if self.remote is not None:
                self.remote.settle(report)

    def _use_times(self, measured: EngineTimes) -> None:
        """The workers measured the engine, before it served the first request."""
        cost = fitted_to(self.setup.cost, measured)
        if not cost.measured:
            logger.warning("SemBlend plans with constants: the measured times do not fit together")
            return
        if not ever_pays(cost):
            logger.warning(
                "SemBlend plans with constants: this engine computes %d tokens faster than it "
                "could copy them, so reuse makes no answer faster here",
                PERFECT_HIT,
            )
            return
        self.setup.logger.info("SemBlend measured this engine: %s", cost)
        self.clock.cost = cost
        self.planner.use_cost(cost)

    def _load_failed(self, request_id: str, failure: LoadFailure) -> None:
        if failure.donor_id is not None:
            self.planner.drop(failure.donor_id)
        request = self.requests.get(request_id)
        if request is None or request.stage is Stage.FAILED:
            return
        blocks = 0 if request.claim is None else self._blocks_of(request.claim)
        request.failed()
        if not request.was_loaded:
            request.handle.undo_private()
            request.handle.tell_cached(exact_tokens=request.placed_tokens, reused_tokens=0)
        if failure.reason == DeclineReason.POLICY_DECLINED:
            self._settlements.declined(request, DeclineReason.POLICY_DECLINED, failure.detail)
        else:
            self._settlements.failed(request, failure, blocks=blocks)

    def _blocks_of(self, claim: Claim) -> int:
        size = self.setup.block_size
        return -(-claim.end // size) - claim.plan.placed_tokens // size

    def _load_ended_well(self, request_id: str, report: WorkerReport) -> None:
        request = self.requests.get(request_id)
        if request is None:
            return
        again = request.was_loaded
        request.loaded(report.refined.get(request_id))
        request.handle.keep_private()
        if not again and request.reuse is not None:
            request.handle.tell_cached(
                exact_tokens=request.placed_tokens, reused_tokens=request.reuse.reused_tokens
            )
        self._staged.confirmed(request)
        self._settlements.confirmed(request, layers=report.layers)

    # -- housekeeping ------------------------------------------------------------------

    def take_stats(self) -> Stats | None:
        """Counts since the last call and current gauges; None if nothing is new."""
        if self.stats.is_empty():
            return None
        gauges = pipeline_gauges(
            self.planner.pipeline,
            self.setup.standing,
            loading=self._claims.may_load,
            captures_waiting=self.planner.pending,
        )
        gauges["cost_measured"] = float(self.planner.pipeline.cost.measured)
        if self.chains is not None:
            gauges["chains"] = len(self.chains)
        if self.shadows is not None:
            gauges["suspended_namespaces"] = self.shadows.watch.stats().suspended
            gauges["shadow_waiting"] = self.shadows.waiting
        self.stats.gauges(gauges)
        return self.stats.take()

    def hit_sources(self, request_id: str, external_tokens: int) -> tuple[int, int]:
        """Of the claimed tokens, how many donors supply and how many are computed."""
        request = self.requests.get(request_id)
        claim = None if request is None else request.claim
        reused = min(0 if claim is None else claim.plan.reused_tokens, external_tokens)
        return reused, external_tokens - reused

    @property
    def has_pending_work(self) -> bool:
        """Whether the engine should keep stepping although no request waits for it.

        An engine that is paused keeps its requests, and is done only once this is False.
        """
        moving = self.remote is not None and self.remote.has_pending_work
        promoting = (
            self.promotions is not None
            and not self.requests  # or they wait for it to be idle
            and self.promotions.has_pending_work
        )
        sampling = self.shadows is not None and self.shadows.has_pending_work
        return moving or promoting or sampling

    def let_go_of_blocks(self) -> None:
        """The engine wants every block back at once: samples and promotions end."""
        with beside("let go of blocks"):
            self._captures.drop_unsent()
            if self.shadows is not None:
                self.shadows.clear()
            if self.promotions is not None:
                self.promotions.clear()
            self._held.let_go(self._captures.reading)

    def reset(self) -> None:
        """Forget every donor and chain, here and in the workers, and lift shadow suspensions."""
        self._captures.drop_unsent()  # or they would be kept after the workers have dropped all
        if self.promotions is not None:
            self.promotions.clear()
        if self.chains is not None:
            self.chains.clear()
        if self.shadows is not None:
            self.shadows.clear()
            self.shadows.watch.resume()
        self.planner.clear()
        self._room.clear()
        self._drop_all = True
        if self.remote is not None:
            self.remote.stop()

    def _weights_changed(self, epoch: int) -> None:
        """Load and keep nothing until the next start: the new weights are unknown.

        Requests and the engine's own prefix cache may hold K/V of both.
        """
        if not self._weights_epoch:
            logger.warning(WEIGHTS_WARNING)
        self._weights_epoch = epoch
        self.reset()
        self._stop(WEIGHTS_CHANGED)

    def _stop(self, why: str) -> None:
        """Load and keep nothing from here on."""
        if self.setup.mode.loads:
            self._claims.stop(why)
            self._captures.stop(why)

    def close(self) -> None:
        """Stop the threads and close the audit file."""
        if self._meaning is not None:
            self._meaning.close()
        self.planner.close()
        self.audit.close()


def _impossible(
    request: Request[Any], block_ids: tuple[int, ...], external_tokens: int
) -> LoadCommand:
    return impossible_load(
        request_id=request.request_id,
        block_ids=block_ids,
        tokens=request.tokens,
        start=request.placed_tokens,
        end=request.placed_tokens + external_tokens,
    )


def _not_shared(donor_id: str, tokens: TokenArray, share_key: bytes) -> int | None:
    return None
