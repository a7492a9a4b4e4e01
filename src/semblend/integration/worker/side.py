"""An adapter beside its engine's model: donors, and the order of actions in a step.

Captures and loads both follow the step's forward. `loads` describes what happens to a load.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from semblend.core.errors import DonorError, UnsupportedModelError
from semblend.core.faults import plant
from semblend.core.tokens import TokenArray
from semblend.integration.scheduler.orders import CaptureCommand, StepOrders, WorkerReport
from semblend.integration.worker.capture_copies import CaptureThread
from semblend.integration.worker.donor_exchange import DonorExchange
from semblend.integration.worker.donors import DonorRoom, WorkerDonors, make_tiers
from semblend.integration.worker.loads import WorkerLoads
from semblend.integration.worker.port import KvAccess, Passes, Ranks
from semblend.integration.worker.self_test import prove_rotation
from semblend.integration.worker.shadow_passes import ShadowPasses
from semblend.integration.worker.span_loader import SpanLoader
from semblend.integration.worker.speed_probe import TimedEngine, measured
from semblend.integration.worker.weights import WeightWatch
from semblend.kv.layer_rotary import Rotary
from semblend.kv.numbers import is_fp8

logger = logging.getLogger("semblend.adapter")

_WEIGHTS_CHANGED = "the weights changed"
_IN_DOUBT = "which donors are good could not be told"
_GPU_LOAD_THREADS = 1
"""Copies share one bus, so loads run one after another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """The worker side's view of one engine."""

    loads: bool
    """Whether donor K/V is kept and loaded at all."""
    nested: bool
    """Whether holes are computed in our own passes, which need the model."""
    step_tokens: int
    """Tokens one step of the engine computes at most."""
    max_positions: int
    """Longest prompt the engine accepts."""
    room: DonorRoom = field(default_factory=DonorRoom)
    load_threads: int | None = None
    """Threads that copy donor K/V; None means one on a GPU and none on a CPU."""
    faults: str = ""
    measures: bool | None = False
    """Whether the engine's speed is measured once it is ready; None: on accelerators."""


ExchangeMaker = Callable[[WorkerDonors, KvAccess, Ranks], DonorExchange | None]
"""Builds the exchange of this rank's donors with other machines, if they are shared."""


class WorkerSide:
    """Owns this rank's donors and its access to the K/V cache. One thread calls it."""

    def __init__(self, setup: WorkerSetup, *, make_exchange: ExchangeMaker | None = None) -> None:
        self._setup = setup
        self._make_exchange = make_exchange
        plant(setup.faults)  # a worker may run in its own process
        self._held: set[str] = set()
        self._to_capture: set[str] = set()
        """Requests whose captures this step has ordered, until they are queued."""
        self._drops_all = False
        """Whether all donors are to be dropped; until they are."""
        self._report = WorkerReport()
        self._weights: WeightWatch | None = None
        self._weights_epoch = 0
        self._objection = ""
        """Why no donor is loaded or kept in this step, if so."""
        self.access: KvAccess | None = None
        self.donors: WorkerDonors | None = None
        self.captures: CaptureThread | None = None
        self.exchange: DonorExchange | None = None
        """Set where donors are shared with other machines."""
        self.nested: Passes | None = None
        self.loads: WorkerLoads | None = None
        self.shadows: ShadowPasses | None = None
        self._ranks: Ranks | None = None
        self._table: Rotary | None = None
        self._loader: SpanLoader | None = None
        self._replayed = 0
        self._served = False
        """Whether a step has begun: the cache may hold somebody's K/V from then on."""

    # -- start -------------------------------------------------------------------------

    def attach(self, access: KvAccess, ranks: Ranks, *, table: Rotary | None = None) -> None:
        """The K/V cache is allocated: start the donors' store.

        `table` has the rows K is rotated with; where the model is needed, they come with it.
        """
        self.access, self._ranks = access, ranks
        room, size = self._setup.room, access.token_bytes
        self.donors = WorkerDonors(
            make_tiers(room, ranks.rank, ranks=ranks.count, token_bytes=size)
        )
        if self._make_exchange is not None:
            self.exchange = self._make_exchange(self.donors, access, ranks)
        self.captures = CaptureThread(
            access,
            self.donors,
            on_stored=None if self.exchange is None else self.exchange.share,
        )
        self._report.layers = access.layer_count
        if table is not None:
            self._start_loads(access, self.donors, ranks, table)

    def bind(
        self,
        model: torch.nn.Module,
        *,
        make_passes: Callable[[KvAccess], Passes],
        make_table: Callable[[], Rotary],
    ) -> None:
        """The model is there: watch it, prepare the nested pass and prove it."""
        if self._setup.loads:
            self._weights = WeightWatch(model)
        if not self._setup.nested:
            return
        if self.access is None or self.donors is None or self._ranks is None:
            raise UnsupportedModelError("the model was handed over before the K/V cache")
        self.nested = make_passes(self.access)
        self.shadows = ShadowPasses(self.nested)
        table = make_table()
        prove_rotation(self.nested, self.access, table, max_positions=self._setup.max_positions)
        self._start_loads(self.access, self.donors, self._ranks, table)

    def _start_loads(
        self, access: KvAccess, donors: WorkerDonors, ranks: Ranks, table: Rotary
    ) -> None:
        self._table = table
        threads = self._setup.load_threads
        if threads is None:
            threads = _GPU_LOAD_THREADS if access.device.type == "cuda" else 0
        self._loader = SpanLoader(access, donors, table, rank=(ranks.rank, ranks.count))
        self.loads = WorkerLoads(
            self._loader,
            access,
            nested=self.nested,
            ranks=ranks,
            pass_tokens=self._setup.step_tokens,
            threads=threads,
        )

    def engine_ready(self) -> None:
        """The engine has compiled its model and serves from now on: measure it. Never raises.

        Only before the first step: the measurement writes into blocks that nobody has then.
        """
        if self._served:
            return
        if self.nested is None or self._loader is None or self._ranks is None:
            return
        if self.access is None or self.donors is None:
            return
        measures = self._setup.measures
        if measures is None:
            measures = self.access.device.type != "cpu"
        if not measures or self._setup.faults:  # faults are for what is served
            return
        self.nested.serving()
        self._report.engine_times = measured(
            TimedEngine(
                passes=self.nested,
                loader=self._loader,
                access=self.access,
                donors=self.donors,
                ranks=self._ranks,
                rank_count=self._ranks.count,
                step_tokens=self._setup.step_tokens,
                max_positions=self._setup.max_positions,
            )
        )
        self._replayed = self.nested.replayed

    # -- measurements ------------------------------------------------------------------

    def kv_of_donor(self, tokens: TokenArray) -> torch.Tensor | None:
        """This rank's K/V of a prompt that was kept, K as it would stand at position 0.

        Float32 [layers, parts, tokens, heads, head_dim]; None where it is not held. `semblend
        certify` measures depth drift by it.
        """
        if self.donors is None or self._table is None:
            return None
        if self.captures is not None:
            self.captures.wait()
        donor_id = self.donors.holding(tokens)
        if donor_id is None:
            return None
        with self.donors.lease(donor_id, 0, len(tokens)) as donor:
            kv = torch.cat([piece.kv.cpu() for piece in donor.pieces], dim=2)
        if is_fp8(kv.dtype):
            return None  # its scales are the engine's, and drift is not measured in fp8
        kv = kv.float()
        drafted = 0 if self.access is None else self.access.draft_layers
        kv = kv[: len(kv) - drafted, :, : len(tokens)]
        positions = torch.arange(len(tokens))
        kv[:, 0] = self._table.rerotate(kv[:, 0], positions, torch.zeros_like(positions))
        return kv

    # -- between steps -------------------------------------------------------------------

    def weights_changed(self, how: str) -> None:
        """Drop everything that was computed with other weights. Never raises."""
        self._weights_epoch += 1
        logger.warning("SemBlend: the weights changed (%s); all donors are dropped", how)
        self._weights = None  # nothing more is kept; there may be no memory to look at
        if self.loads is not None:
            self.loads.cancel(_WEIGHTS_CHANGED)
        if self.exchange is not None:
            self.exchange.clear()
        try:
            self.before_unmapping()
        except DonorError as error:  # it is not kept, however long it takes
            logger.warning("SemBlend: %s", error)
        if self.donors is not None:
            self.donors.clear()

    def before_unmapping(self) -> None:
        """The K/V cache is about to lose its memory: nothing uses it once this returns."""
        if self.loads is not None:
            self.loads.wait()
        if self.captures is not None:
            self.captures.abandon()

    def _look_at_weights(self, meta: StepOrders) -> None:
        uses_donors = bool(meta.loads or meta.captures or meta.shadows)
        if uses_donors and self._weights is not None:
            if self._weights.changed():
                self.weights_changed("seen in the parameters")
            elif self.nested is not None and self.nested.adapters_changed():
                self.weights_changed("an adapter's, under the number it had")
        outdated = meta.weights_epoch != self._weights_epoch  # ordered before they changed
        self._objection = _WEIGHTS_CHANGED if outdated else ""

    # -- a step --------------------------------------------------------------------------

    def before_overwrite(self, meta: StepOrders) -> None:
        """Blocks of preempted requests are about to be overwritten: finish copying them."""
        if meta.preempted and self.captures is not None:
            self.captures.wait_for(meta.preempted)

    def start_step(self, meta: StepOrders) -> None:
        """What comes before everything else in a step. Never raises.

        Called in every step, also in those without a forward, in which everything is done
        here (some engines skip `after_forward` in them).
        """
        self._served = True
        self._to_capture = {command.request_id for command in meta.captures}
        self._held.update(meta.held)
        self._drops_all = self._drops_all or meta.drop_all
        try:
            self._housekeeping(meta)
        except Exception:
            logger.warning("SemBlend could not keep its donors in order", exc_info=True)
            self._objection = _IN_DOUBT
        if meta.shadows:
            self._compute_samples(meta)
        if meta.idle:
            self._capture_and_load(meta)

    def after_forward(self, meta: StepOrders) -> None:
        """This step's K/V is written: queue what becomes a donor, then carry out loads.

        Loads come last because a request may have hit prefix blocks that another one
        computes in this very step. Never raises.
        """
        if not meta.idle:
            self._capture_and_load(meta)

    def _capture_and_load(self, meta: StepOrders) -> None:
        for command in meta.captures if self.captures is not None else ():
            self._capture(command)
        self._to_capture.clear()
        self._load(meta)

    def _housekeeping(self, meta: StepOrders) -> None:
        if self.nested is not None:
            self.nested.serving()
        self._look_at_weights(meta)
        if meta.idle and self._held and self.captures is not None:
            # The engine keeps stepping until the blocks are freed; spinning would starve the copy.
            self.captures.wait_a_little(self._held)
        elif meta.idle and self.exchange is not None:
            self.exchange.wait_a_little()
        if self.donors is not None:
            if self._drops_all:
                if self.captures is not None:
                    self.captures.wait()
                if self.exchange is not None:
                    self.exchange.clear()
                if self.loads is not None:
                    self.loads.cancel("the donors were dropped while they were copied")
                self.donors.clear()
                self._drops_all = False
            for donor_id in meta.dropped:
                self.donors.drop(donor_id)
        if self.exchange is not None:
            for order in meta.fetches:
                self.exchange.fetch(order)
        if self.shadows is not None:
            for sample_id in meta.shadows_dropped:
                self.shadows.drop(sample_id)

    def _compute_samples(self, meta: StepOrders) -> None:
        """Their blocks wait for an answer; a pass is run by all ranks or by none."""
        fine = self._objection != _IN_DOUBT
        try:
            if self._ranks is not None:
                (fine,) = self._ranks.all_true([fine])
        except Exception:
            logger.warning("SemBlend's ranks could not agree on samples", exc_info=True)
            fine = False
        for shadow in meta.shadows:
            if self.shadows is not None and fine:
                self.shadows.run(shadow, self._report)
            else:
                self._report.shadow_failed.add(shadow.sample_id)

    def _capture(self, command: CaptureCommand) -> None:
        try:
            if self._objection:
                raise DonorError(self._objection)
            if self.captures is not None:
                self.captures.submit(command)
        except Exception as error:
            logger.warning("SemBlend could not capture %s: %s", command.donor_id, error)
            self._report.rejected[command.donor_id] = repr(error)
            self._report.answered[command.donor_id] += 1

    def _load(self, meta: StepOrders) -> None:
        if self.loads is None:
            return
        loads = meta.loads
        if self._objection:
            loads = [replace(command, refused=self._objection) for command in loads]
        self.loads.step(loads, self._report, idle=meta.idle)

    # -- answers -------------------------------------------------------------------------

    def take_bad_blocks(self) -> set[int]:
        """Blocks of loads that failed in this step."""
        return set() if self.loads is None else self.loads.take_bad_blocks()

    def take_received(self) -> set[str]:
        """Requests whose loads have ended, successful or not."""
        return set() if self.loads is None else self.loads.take_received()

    def take_freed(self) -> set[str]:
        """Finished requests whose blocks are no longer needed.

        vLLM's V1 runner asks before :meth:`after_forward` where it has a drafter.
        """
        captures = self.captures
        freed = {
            request_id
            for request_id in self._held - self._to_capture
            if captures is None or not captures.is_pending(request_id)
        }
        self._held -= freed
        return freed

    def take_report(self) -> WorkerReport | None:
        """What this rank did since the last call, or None."""
        report = self._report
        report.weights_epoch = self._weights_epoch
        if report.loaded and self.loads is not None:
            report.clipped = self.loads.take_clipped()
        if report.loaded and self.nested is not None:
            report.replayed = self.nested.replayed - self._replayed
            self._replayed = self.nested.replayed
        self._report = WorkerReport(layers=report.layers)
        if self.captures is not None:
            report = report + self.captures.take_report()
        if self.exchange is not None:
            report = report + self.exchange.take_report()
        if self.donors is not None:
            report.lost |= self.donors.take_lost()
        return None if report.is_empty else report

    def close(self) -> None:
        """Stop the threads and release the donors."""
        if self.loads is not None:
            self.loads.close()
        if self.captures is not None:
            self.captures.close()
        if self.exchange is not None:
            self.exchange.close()
        if self.donors is not None:
            self.donors.close()
