"""`SemBlendConnectorV1`: the class vLLM loads, and nothing but its interface.

vLLM makes one for the scheduler and one for each worker; they share no state. Calls in
a step, in vLLM's order (0.30 to 0.32):

scheduler: on_new_request, get_num_new_matched_tokens, update_state_after_alloc,
           get_external_cache_hit_sources, build_connector_meta
worker:    handle_preemptions, bind_connector_metadata, the forward, start_load_kv (before
           the forward only where a load is synchronous, which none of ours is),
           wait_for_save, get_finished, get_block_ids_with_load_errors,
           build_connector_worker_meta
scheduler: request_finished_all_groups, update_connector_output, get_kv_connector_stats

Claims are asynchronous (see `claims`): a request is scheduled in a step after the one in
which `get_finished` named it.

See docs/vllm.md for how to set it up.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from vllm import __version__ as vllm_version
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)

from semblend.core.distribution import PACKAGE, require_this_distribution
from semblend.core.tokens import TokenArray
from semblend.integration.logs import speak_through
from semblend.integration.refusals import Refusal, UnsupportedEngineError
from semblend.integration.scheduler.planner import PlanRewriter
from semblend.integration.scheduler.side import SchedulerSide
from semblend.integration.vllm import worker_port
from semblend.integration.vllm.fleet import FleetMember
from semblend.integration.vllm.metadata import ConnectorMeta, RankReports
from semblend.integration.vllm.options import ConnectorOptions
from semblend.integration.vllm.scheduler_port import VllmRequest, VllmScheduler, step_of
from semblend.integration.vllm.setup import VllmSetup
from semblend.integration.vllm.stats import SemBlendPromMetrics, SemBlendStats
from semblend.integration.vllm.support import (
    cache_refusals,
    engine_refusals,
    sharing_refusal,
    version_refusals,
)
from semblend.integration.worker.side import WorkerSide

logger = logging.getLogger("vllm.semblend")


class SemBlendConnectorV1(KVConnectorBase_V1, SupportsHMA):
    """Reuses K/V of donors in stock vLLM; see the module's docstring for the order of calls."""

    def __init__(
        self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any | None = None
    ) -> None:
        """Check everything that can be refused at start, then set one side up.

        Raises
        ------
        ForeignDistributionError
            If another project's `semblend` was installed over this one.
        SettingsError
            If `kv_connector_extra_config` has a key or value it cannot take.
        UnsupportedEngineError
            Naming every feature in use that this adapter was not proven with.
        """
        for beside in require_this_distribution("vllm").beside:
            logger.warning("SemBlend runs from %s, and %s is installed beside it", PACKAGE, beside)
        speak_through(logger)
        super().__init__(vllm_config, role, kv_cache_config)
        options = ConnectorOptions.from_extra_config(
            vllm_config.kv_transfer_config.kv_connector_extra_config
        )
        _refuse_unproven(vllm_config, kv_cache_config, options)
        self.options = options
        self.fleet = FleetMember(vllm_config, options)
        self._config = vllm_config
        self.scheduler_side: SchedulerSide[VllmRequest] | None = None
        self.worker_side: WorkerSide | None = None
        if role is KVConnectorRole.SCHEDULER:
            setup = VllmSetup.of(vllm_config, options)
            self._port = VllmScheduler(setup)
            self.scheduler_side = SchedulerSide(
                setup.scheduler,
                self._port,
                make_remote=self.fleet.join,
                rewrite=self.rewrite_plan,
            )
            logger.log(setup.running.level, "%s", setup.running)
            if unheeded := options.unheeded():
                logger.warning("SemBlend: %s", unheeded)
        else:
            self.worker_side = WorkerSide(
                worker_port.worker_setup(vllm_config, options), make_exchange=self.fleet.exchange
            )

    rewrite_plan: PlanRewriter | None = None
    """A last look at every plan, for experiments and tests that make a class of this one."""

    @property
    def requires_kv_delivery(self) -> bool:
        """False: a donor that is not kept is a later miss, nothing more."""
        return False

    @property
    def _scheduler(self) -> SchedulerSide[VllmRequest]:
        if self.scheduler_side is None:
            raise RuntimeError("a scheduler's call on a worker's connector")
        return self.scheduler_side

    @property
    def _worker(self) -> WorkerSide:
        if self.worker_side is None:
            raise RuntimeError("a worker's call on a scheduler's connector")
        return self.worker_side

    # -- worker ----------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The cache is allocated."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        group = get_kv_transfer_group()
        if group is not self and self.options.mode.loads:
            raise UnsupportedEngineError([sharing_refusal(group, self)])
        if self.options.mode.loads:
            worker_port.attach(self._worker, self._config, kv_caches, nested=self.options.nested)

    def bind_model_runner(self, runner: Any) -> None:
        """Called by :class:`semblend.integration.vllm.worker.SemBlendWorker`."""
        worker_port.bind(self._worker, self._config, runner)

    def weights_changed(self, how: str) -> None:
        """Called by our worker class: donors of the old weights must not survive."""
        self._worker.weights_changed(how)

    def before_unmapping(self) -> None:
        """Called by our worker class before the K/V cache's memory goes away."""
        self._worker.before_unmapping()

    def kv_of_donor(self, tokens: TokenArray) -> torch.Tensor | None:
        """Called by our worker class, for measurements: see :meth:`WorkerSide.kv_of_donor`."""
        return self._worker.kv_of_donor(tokens)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Blocks are about to be overwritten."""
        if isinstance(kv_connector_metadata, ConnectorMeta):
            self._worker.before_overwrite(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Housekeeping, and in a step without a forward everything else too."""
        self._worker.start_step(self._meta())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: no forward reads what is not loaded yet."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing: prompts are captured whole, after the forward."""

    def wait_for_save(self) -> None:
        """Queue captures, whose blocks stay until they are done, and carry out loads."""
        self._worker.after_forward(self._meta())

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Requests whose blocks may be freed now, and those whose loads have ended."""
        return self._worker.take_freed() or None, self._worker.take_received() or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks to compute exactly."""
        return self._worker.take_bad_blocks()

    def build_connector_worker_meta(self) -> RankReports | None:
        """What this rank did."""
        report = self._worker.take_report()
        return None if report is None else RankReports(report)

    def _meta(self) -> ConnectorMeta:
        meta = self._get_connector_metadata()
        if not isinstance(meta, ConnectorMeta):
            raise RuntimeError(f"metadata of another connector: {type(meta).__name__}")
        return meta

    # -- scheduler -------------------------------------------------------------------

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """The scheduler's cache manager exists now."""
        super().bind_kv_cache_manager(kv_cache_manager)
        self._port.manager = kv_cache_manager
        _let_go_before_resets(kv_cache_manager, self._scheduler)

    def on_new_request(self, request: Any) -> None:
        """A request arrived."""
        self._scheduler.arrived(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Tokens that can be supplied beyond the engine's own prefix hit."""
        tokens = self._scheduler.matched_tokens(request, num_computed_tokens)
        # Asynchronous: one that fails is never rewound, which answers garbage under the V2
        # runner and under asynchronous scheduling (0.32).
        return tokens, bool(tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Slots are allocated."""
        self._scheduler.allocated(
            str(request.request_id), lambda: _only(blocks.get_block_ids()), num_external_tokens
        )

    def get_external_cache_hit_sources(
        self, request: Any, num_external_tokens: int
    ) -> dict[Any, int]:
        """Donors' tokens come from host memory; hole tokens are nobody's cache hit."""
        from vllm.v1.metrics.cache_hit_source import CacheHitSource

        reused, holes = self._scheduler.hit_sources(request.request_id, num_external_tokens)
        sources = {CacheHitSource.HOST: reused, CacheHitSource.EXTERNAL_UNSPECIFIED: holes}
        return {source: tokens for source, tokens in sources.items() if tokens}

    def build_connector_meta(self, scheduler_output: Any) -> ConnectorMeta:
        """This step's orders."""
        meta = ConnectorMeta()
        self._scheduler.fill(meta, step_of(scheduler_output))
        return meta

    def update_connector_output(self, connector_output: Any) -> None:
        """The workers' answer."""
        said = connector_output.kv_connector_worker_meta
        self._scheduler.update(
            said.report if isinstance(said, RankReports) else None,
            connector_output.finished_sending,
        )

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """A request ends; the response says what was reused."""
        return self._scheduler.ended(request, block_ids)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """The same, for engines with the hybrid cache manager on."""
        return self._scheduler.ended(request, _only(block_ids))

    def has_pending_block_frees(self) -> bool:
        """Whether waiting a step frees blocks, so that nobody need be preempted."""
        return self._scheduler.has_held_blocks

    def has_pending_push_work(self) -> bool:
        """Whether donors are on their way between machines, or samples to be computed."""
        return self._scheduler.has_pending_work

    def reset_cache(self) -> bool:
        """Forget all donors (weights changed, or an operator asked)."""
        self._scheduler.reset()
        return True

    # -- both ------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> SemBlendStats | None:
        """Statistics; the scheduler's side has them all."""
        taken = None if self.scheduler_side is None else self.scheduler_side.take_stats()
        return None if taken is None else SemBlendStats(data=taken.data)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> SemBlendStats:
        """Statistics from their plain form."""
        return SemBlendStats() if data is None else SemBlendStats(data=data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> SemBlendPromMetrics:
        """Our metrics in vLLM's /metrics."""
        return SemBlendPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """Withdraw what is shared and stop the threads, then say goodbye to the fleet."""
        for side in (self.scheduler_side, self.worker_side):
            if side is not None:
                side.close()
        self.fleet.leave()


def _only(groups: tuple[list[int], ...]) -> list[int]:
    """The block ids of vLLM's one cache group; more are refused at start."""
    (only,) = groups or ([],)
    return only


def _let_go_before_resets(manager: Any, side: SchedulerSide[VllmRequest]) -> None:
    """Have a reset of the prefix cache ask us for the blocks we hold.

    vLLM resets only a cache of which no block is in use, raises where it must succeed (pause,
    sleep, `reset_running_requests`), and asks connectors afterwards.
    """
    reset = manager.reset_prefix_cache

    def reset_prefix_cache() -> bool:
        side.let_go_of_blocks()
        return bool(reset())

    manager.reset_prefix_cache = reset_prefix_cache


def _refuse_unproven(
    vllm_config: Any, kv_cache_config: Any | None, options: ConnectorOptions
) -> None:
    refusals = version_refusals(vllm_version)
    if options.mode.loads:
        refusals += engine_refusals(vllm_config, options)
        if kv_cache_config is not None:
            refusals += cache_refusals(kv_cache_config)
        if options.staged and not vllm_config.cache_config.enable_prefix_caching:
            refusals.append(
                Refusal(feature="prefix caching off", remedy="the staged ladder climbs on it")
            )
    if refusals:
        raise UnsupportedEngineError(refusals)
