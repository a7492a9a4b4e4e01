"""The connector in a worker: carries out loads before the forward, captures after it.

A load that cannot be carried out is never half done in the engine's eyes: all its
blocks are reported, and vLLM computes those tokens exactly. With tensor
parallelism the ranks first agree on which loads all of them can make, so that the
nested pass, which has collectives, is run by all of them or none.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import torch

from semblend.core.errors import DonorError, UnsupportedModelError
from semblend.core.faults import FaultPoint, plant, reach
from semblend.core.outcomes import DeclineReason
from semblend.integration.refusals import UnsupportedEngineError
from semblend.integration.vllm import rotary
from semblend.integration.vllm.capture import CaptureThread
from semblend.integration.vllm.donors import WorkerDonors, make_tiers
from semblend.integration.vllm.exchange import DonorExchange
from semblend.integration.vllm.loading import DonorLostError, SpanLoader
from semblend.integration.vllm.metadata import (
    ConnectorMeta,
    LoadCommand,
    LoadFailure,
    WorkerReport,
)
from semblend.integration.vllm.modes import Execution
from semblend.integration.vllm.nested_pass import NestedPass, hole_sequences
from semblend.integration.vllm.options import ConnectorOptions
from semblend.integration.vllm.paged_access import PagedAccess
from semblend.integration.vllm.probing import refined
from semblend.integration.vllm.self_test import prove_rotation
from semblend.integration.vllm.shadow_passes import ShadowPasses
from semblend.integration.vllm.support import layer_refusals

logger = logging.getLogger("vllm.semblend")


class WorkerSide:
    """Owns this rank's donors and its access to the K/V cache. One thread calls it."""

    def __init__(self, *, config: Any, options: ConnectorOptions) -> None:
        self._config = config
        self._options = options
        plant(options.settings().faults)  # a worker may have a process of its own
        self._bad_blocks: set[int] = set()
        self._held: set[str] = set()
        self._report = WorkerReport()
        self.access: PagedAccess | None = None
        self.donors: WorkerDonors | None = None
        self.captures: CaptureThread | None = None
        self.exchange: DonorExchange | None = None
        """Set where donors are shared with other machines; see :meth:`share_with`."""
        self.nested: NestedPass | None = None
        self.loader: SpanLoader | None = None
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
            table = rotary.table_from_config(self._config)
            self.loader = SpanLoader(self.access, self.donors, table, rank=_tp_place())

    def bind_model_runner(self, runner: Any) -> None:
        """Our worker class hands the model over: prepare the nested pass and prove it."""
        if not self.needs_model:
            return
        if self.access is None or self.donors is None:
            raise UnsupportedModelError("the model was handed over before the K/V cache")
        self.nested = NestedPass(runner, self._config)
        self.shadows = ShadowPasses(self.nested, self.access)
        table = rotary.table_from_model(runner.get_model())
        prove_rotation(
            self.nested,
            self.access,
            table,
            max_positions=int(self._config.model_config.max_model_len),
        )
        self.loader = SpanLoader(self.access, self.donors, table, rank=_tp_place())

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

    def start_load(self, meta: ConnectorMeta) -> None:
        """Carry out this step's loads. Never raises: what fails is reported.

        Called in every step, also in those without a forward (vLLM 0.30 leaves
        `wait_for_save` out of them).
        """
        self._held.update(meta.held)
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
        if not meta.loads:
            return
        started = time.perf_counter()
        failures = self._agreed([self._copy_spans(command) for command in meta.loads])
        good: list[LoadCommand] = []
        for command, failure in zip(meta.loads, failures, strict=True):
            if failure is None:
                good.append(command)
            else:
                self._fail(command, failure)
        copied = time.perf_counter()
        good = self._refined(good)
        failure = self._compute_holes(good)
        for command in good:
            if failure is None:
                self._report.loaded[command.request_id] += 1
            else:
                self._fail(command, failure)
        self._report.load_ms += (copied - started) * 1e3
        self._report.nested_ms += (time.perf_counter() - copied) * 1e3

    def after_forward(self, meta: ConnectorMeta) -> None:
        """This step's K/V is written: queue what becomes a donor."""
        if self.captures is None:
            return
        for command in meta.captures:
            try:
                self.captures.submit(command)
            except Exception as error:
                logger.warning("SemBlend could not capture %s: %s", command.donor_id, error)
                self._report.rejected[command.donor_id] = repr(error)
                self._report.answered[command.donor_id] += 1

    def _copy_spans(self, command: LoadCommand) -> LoadFailure | None:
        try:
            if command.refused:
                raise DonorError(command.refused)
            if self.loader is None:
                raise DonorError("this worker was not set up to load")
            if command.holes and self.nested is None:
                raise DonorError("holes, and no model to compute them with")
            self.loader.load(command)
        except DonorLostError as error:
            return LoadFailure(
                reason=DeclineReason.DONOR_GONE.value, detail=str(error), donor_id=error.donor_id
            )
        except Exception as error:
            logger.debug("SemBlend load failed", exc_info=True)
            return _failure(error)
        return None

    def _refined(self, commands: list[LoadCommand]) -> list[LoadCommand]:
        """The loads with what their dynamic policies add; what fails there is left out."""
        kept: list[LoadCommand] = []
        for command in commands:
            if command.refine is None:
                kept.append(command)
                continue
            try:
                if self.nested is None or self.access is None:
                    raise DonorError("no model to ask")
                command = refined(
                    command,
                    nested=self.nested,
                    access=self.access,
                    reduce=self._summed,
                    most_tokens=int(self._config.scheduler_config.max_num_batched_tokens),
                )
            except Exception as error:
                # The same on every rank: they choose by the same numbers.
                self._fail(command, _failure(error))
                continue
            self._report.refined[command.request_id] = command.reused_tokens
            kept.append(command)
        return kept

    def _summed(self, values: torch.Tensor) -> torch.Tensor:
        from vllm.distributed.parallel_state import get_tp_group

        if self._config.parallel_config.tensor_parallel_size > 1:
            torch.distributed.all_reduce(values, group=get_tp_group().cpu_group)
        return values

    def _compute_holes(self, commands: list[LoadCommand]) -> LoadFailure | None:
        if self.nested is None or self.access is None:
            return None
        try:
            sequences = [
                sequence
                for command in commands
                for sequence in hole_sequences(command, self.access)
            ]
            if sequences:
                reach(FaultPoint.NESTED_PASS)
            self.nested.run(sequences)
        except Exception as error:
            logger.warning("SemBlend's nested pass failed", exc_info=True)
            return _failure(error)
        return None

    def _agreed(self, failures: list[LoadFailure | None]) -> list[LoadFailure | None]:
        """The same with what failed on another rank failed here too."""
        from vllm.distributed.parallel_state import get_tp_group

        if self._config.parallel_config.tensor_parallel_size == 1:
            return failures
        good = torch.tensor([failure is None for failure in failures], dtype=torch.int32)
        torch.distributed.all_reduce(
            good, op=torch.distributed.ReduceOp.MIN, group=get_tp_group().cpu_group
        )
        elsewhere = LoadFailure(
            reason=DeclineReason.MATERIALISATION_FAILED.value, detail="failed on another rank"
        )
        return [
            failure if failure is not None or fine else elsewhere
            for failure, fine in zip(failures, good.tolist(), strict=True)
        ]

    def _fail(self, command: LoadCommand, failure: LoadFailure) -> None:
        block_size = int(self._config.cache_config.block_size)
        self._bad_blocks.update(command.claimed_blocks(block_size))
        self._report.failed[command.request_id] = failure

    # -- answers -------------------------------------------------------------------------

    def take_bad_blocks(self) -> set[int]:
        """Blocks whose load failed in this step."""
        bad, self._bad_blocks = self._bad_blocks, set()
        return bad

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
        self._report = WorkerReport(layers=report.layers)
        if self.captures is not None:
            report = report.aggregate(self.captures.take_report())
        if self.exchange is not None:
            report = report.aggregate(self.exchange.take_report())
        if self.donors is not None:
            report.lost |= self.donors.take_lost()
        return None if report.is_empty else report

    def close(self) -> None:
        """Stop the capture thread and let go of the donors."""
        if self.captures is not None:
            self.captures.close()
        if self.exchange is not None:
            self.exchange.close()
        if self.donors is not None:
            self.donors.close()


def _failure(error: Exception) -> LoadFailure:
    return LoadFailure(
        reason=DeclineReason.MATERIALISATION_FAILED.value,
        detail=f"{type(error).__name__}: {error}",
    )


def _tp_place() -> tuple[int, int]:
    """This worker's rank, and how many there are."""
    from vllm.distributed.parallel_state import (
        get_tensor_model_parallel_rank,
        get_tensor_model_parallel_world_size,
    )

    rank = int(get_tensor_model_parallel_rank())
    return rank, int(get_tensor_model_parallel_world_size())
