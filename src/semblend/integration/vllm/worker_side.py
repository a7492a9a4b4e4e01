"""The connector in a worker: donors, and the order of things in a step.

Captures and loads both come behind the step's forward. See `worker_loads` for what becomes
of a load.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import torch

from semblend.core.errors import DonorError, UnsupportedModelError
from semblend.core.faults import plant
from semblend.integration.refusals import UnsupportedEngineError
from semblend.integration.vllm import rotary
from semblend.integration.vllm.capture import CaptureThread
from semblend.integration.vllm.donors import WorkerDonors, make_tiers
from semblend.integration.vllm.exchange import DonorExchange
from semblend.integration.vllm.loading import SpanLoader
from semblend.integration.vllm.metadata import CaptureCommand, ConnectorMeta, WorkerReport
from semblend.integration.vllm.modes import Execution
from semblend.integration.vllm.nested_pass import NestedPass
from semblend.integration.vllm.options import ConnectorOptions
from semblend.integration.vllm.paged_access import PagedAccess
from semblend.integration.vllm.ranks import Ranks
from semblend.integration.vllm.self_test import prove_rotation
from semblend.integration.vllm.shadow_passes import ShadowPasses
from semblend.integration.vllm.support import layer_refusals
from semblend.integration.vllm.weights import WeightWatch
from semblend.integration.vllm.worker_loads import WorkerLoads
from semblend.kv.rotary_table import RotaryTable

logger = logging.getLogger("vllm.semblend")

_WEIGHTS_CHANGED = "the weights changed"
_GPU_LOAD_THREADS = 1
"""Copies share one bus, so loads come one after another."""


class WorkerSide:
    """Owns this rank's donors and its access to the K/V cache. One thread calls it."""

    def __init__(self, *, config: Any, options: ConnectorOptions) -> None:
        self._config = config
        self._options = options
        plant(options.settings().faults)  # a worker may have a process of its own
        self._held: set[str] = set()
        self._report = WorkerReport()
        self._weights: WeightWatch | None = None
        self._weights_epoch = 0
        self._outdated = False
        """Whether this step's orders were given before the weights changed."""
        self.access: PagedAccess | None = None
        self.donors: WorkerDonors | None = None
        self.captures: CaptureThread | None = None
        self.exchange: DonorExchange | None = None
        """Set where donors are shared with other machines; see :meth:`share_with`."""
        self.nested: NestedPass | None = None
        self.loads: WorkerLoads | None = None
        self.shadows: ShadowPasses | None = None

    @property
    def needs_model(self) -> bool:
        """Whether the nested pass is used, so that our worker class must hand the model over."""
        return self._options.mode.segmented and self._options.execution is Execution.NESTED

    # -- start -------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The K/V cache is allocated: learn its layout and start the donors' store."""
        if not self._options.mode.loads:
            return
        static = self._config.compilation_config.static_forward_context
        layers = {name: static[name] for name in kv_caches}
        refusals = layer_refusals(layers.values())
        if refusals:
            raise UnsupportedEngineError(refusals)
        self.access = PagedAccess(layers, block_size=int(self._config.cache_config.block_size))
        rank, ranks = _tp_place()
        token_bytes = self.access.token_bytes
        self.donors = WorkerDonors(
            make_tiers(self._options, rank, ranks=ranks, token_bytes=token_bytes)
        )
        self.captures = CaptureThread(self.access, self.donors)
        self._report.layers = len(layers)
        if not self.needs_model:
            self._start_loads(self.access, self.donors, rotary.table_from_config(self._config))

    def bind_model_runner(self, runner: Any) -> None:
        """Our worker class hands the model over: prepare the nested pass and prove it."""
        if self._options.mode.loads:
            self._weights = WeightWatch(runner.get_model())
        if not self.needs_model:
            return
        if self.access is None or self.donors is None:
            raise UnsupportedModelError("the model was handed over before the K/V cache")
        self.nested = NestedPass(runner, self._config)
        self.shadows = ShadowPasses(self.nested)
        table = rotary.table_from_model(runner.get_model())
        prove_rotation(
            self.nested,
            self.access,
            table,
            max_positions=int(self._config.model_config.max_model_len),
        )
        self._start_loads(self.access, self.donors, table)

    def _start_loads(self, access: PagedAccess, donors: WorkerDonors, table: RotaryTable) -> None:
        threads = self._options.load_threads
        if threads is None:
            threads = _GPU_LOAD_THREADS if access.device.type == "cuda" else 0
        self.loads = WorkerLoads(
            SpanLoader(access, donors, table, rank=_tp_place()),
            access,
            nested=self.nested,
            ranks=Ranks(self._config),
            pass_tokens=int(self._config.scheduler_config.max_num_batched_tokens),
            threads=threads,
        )

    # -- between steps -------------------------------------------------------------------

    def weights_changed(self, how: str) -> None:
        """Let go of everything that was computed with other weights than now. Never raises."""
        self._weights_epoch += 1
        logger.warning("SemBlend: the weights changed (%s); all donors are dropped", how)
        self._weights = None  # nothing is kept any more; there may be no memory to look at
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
        """The K/V cache is about to lose its memory: nobody uses it when this returns."""
        if self.loads is not None:
            self.loads.wait()
        if self.captures is not None:
            self.captures.abandon()

    def _look_at_weights(self, meta: ConnectorMeta) -> None:
        uses_donors = bool(meta.loads or meta.captures or meta.shadows)
        if uses_donors and self._weights is not None and self._weights.changed():
            self.weights_changed("seen in the parameters")
        self._outdated = meta.weights_epoch != self._weights_epoch

    def share_with(self, exchange: DonorExchange) -> None:
        """Share what is captured from now on, and fetch what is ordered."""
        if self.captures is None:
            raise UnsupportedModelError("donors cannot be shared before the K/V cache is there")
        self.exchange = exchange
        self.captures.on_stored = exchange.share

    # -- a step --------------------------------------------------------------------------

    def before_overwrite(self, meta: ConnectorMeta) -> None:
        """Blocks of preempted requests are about to be overwritten: finish copying them."""
        if meta.preempted and self.captures is not None:
            self.captures.wait_for(meta.preempted)

    def start_step(self, meta: ConnectorMeta) -> None:
        """What comes before everything else in a step. Never raises.

        Called in every step, also in those without a forward, in which everything is done
        here (vLLM 0.30 leaves `wait_for_save` out of them).
        """
        try:
            self._housekeeping(meta)
        except Exception:
            logger.warning("SemBlend could not keep its donors in order", exc_info=True)
        if meta.idle:
            self._load(meta)

    def after_forward(self, meta: ConnectorMeta) -> None:
        """This step's K/V is written: queue what becomes a donor, then carry out loads.

        Loads come last because a request may have hit prefix blocks that another one
        computes in this very step. Never raises.
        """
        for command in meta.captures if self.captures is not None else ():
            self._capture(command)
        if not meta.idle:
            self._load(meta)

    def _housekeeping(self, meta: ConnectorMeta) -> None:
        if self.nested is not None:
            self.nested.use_compiled()
        self._held.update(meta.held)
        self._look_at_weights(meta)
        if meta.idle and self._held and self.captures is not None:
            # The engine steps on until the blocks are freed; spinning would starve the copy.
            self.captures.wait_a_little(self._held)
        elif meta.idle and self.exchange is not None:
            self.exchange.wait_a_little()
        if self.donors is not None:
            if meta.drop_all:
                if self.captures is not None:
                    self.captures.wait()
                if self.exchange is not None:
                    self.exchange.clear()
                if self.loads is not None:
                    self.loads.cancel("the donors were dropped while they were copied")
                self.donors.clear()
            for donor_id in meta.dropped:
                self.donors.drop(donor_id)
        if self.exchange is not None:
            for order in meta.fetches:
                self.exchange.fetch(order)
        if self.shadows is not None:
            for sample_id in meta.shadows_dropped:
                self.shadows.drop(sample_id)
            for shadow in meta.shadows:
                self.shadows.run(shadow, self._report)

    def _capture(self, command: CaptureCommand) -> None:
        try:
            if self._outdated:
                raise DonorError(_WEIGHTS_CHANGED)
            if self.captures is not None:
                self.captures.submit(command)
        except Exception as error:
            logger.warning("SemBlend could not capture %s: %s", command.donor_id, error)
            self._report.rejected[command.donor_id] = repr(error)
            self._report.answered[command.donor_id] += 1

    def _load(self, meta: ConnectorMeta) -> None:
        if self.loads is None:
            return
        loads = meta.loads
        if self._outdated:
            loads = [replace(command, refused=_WEIGHTS_CHANGED) for command in loads]
        self.loads.step(loads, self._report, idle=meta.idle)

    # -- answers -------------------------------------------------------------------------

    def take_bad_blocks(self) -> set[int]:
        """Blocks of loads that failed in this step."""
        return set() if self.loads is None else self.loads.take_bad_blocks()

    def take_received(self) -> set[str]:
        """Requests whose loads have ended, well or not."""
        return set() if self.loads is None else self.loads.take_received()

    def take_freed(self) -> set[str]:
        """Finished requests whose blocks are no longer needed."""
        captures = self.captures
        freed = {
            request_id
            for request_id in self._held
            if captures is None or not captures.is_pending(request_id)
        }
        self._held -= freed
        return freed

    def take_report(self) -> WorkerReport | None:
        """What this rank did since the last call, or None."""
        report = self._report
        report.weights_epoch = self._weights_epoch
        self._report = WorkerReport(layers=report.layers)
        if self.captures is not None:
            report = report.aggregate(self.captures.take_report())
        if self.exchange is not None:
            report = report.aggregate(self.exchange.take_report())
        if self.donors is not None:
            report.lost |= self.donors.take_lost()
        return None if report.is_empty else report

    def close(self) -> None:
        """Stop the threads and let go of the donors."""
        if self.loads is not None:
            self.loads.close()
        if self.captures is not None:
            self.captures.close()
        if self.exchange is not None:
            self.exchange.close()
        if self.donors is not None:
            self.donors.close()


def _tp_place() -> tuple[int, int]:
    """This worker's rank, and how many there are."""
    from vllm.distributed.parallel_state import (
        get_tensor_model_parallel_rank,
        get_tensor_model_parallel_world_size,
    )

    rank = int(get_tensor_model_parallel_rank())
    return rank, int(get_tensor_model_parallel_world_size())
