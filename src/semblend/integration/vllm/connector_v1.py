"""`SemBlendConnectorV1`: the class vLLM loads. It holds the interface and nothing else.

vLLM creates one for the scheduler and one per worker; they share no state. Calls in a step,
in vLLM's order (0.30 to 0.32):

scheduler: on_new_request, get_num_new_matched_tokens, update_state_after_alloc,
           get_external_cache_hit_sources, build_connector_meta
worker:    handle_preemptions, bind_connector_metadata, the forward, start_load_kv (before
           the forward only for synchronous loads, which we never use),
           wait_for_save, get_finished, get_block_ids_with_load_errors,
           build_connector_worker_meta
scheduler: request_finished_all_groups, update_connector_output, get_kv_connector_stats

Claims are asynchronous (see `integration.scheduler.claims`): a request is scheduled in a step after
the one in which `get_finished` named it.

See docs/vllm.md for how to set it up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from semblend.core.distribution import PACKAGE, require_this_distribution
from semblend.core.tokens import TokenArray
from semblend.integration.engine_log import speak_through
from semblend.integration.idle import idle_class
from semblend.integration.refusals import UnsupportedEngineError
from semblend.integration.running_mode import RunningMode
from semblend.integration.scheduler.engine_planner import PlanRewriter
from semblend.integration.scheduler.side import SchedulerSide
from semblend.integration.starting import Start, build
from semblend.integration.vllm import worker_port
from semblend.integration.vllm.chain_blocks import VllmChains, ask_before_lookups
from semblend.integration.vllm.fleet import fleet_part
from semblend.integration.vllm.interface import (
    BASES,
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from semblend.integration.vllm.metadata import ConnectorMeta, RankReports
from semblend.integration.vllm.neighbours import neighbour_refusals
from semblend.integration.vllm.options import ConnectorOptions
from semblend.integration.vllm.scheduler_port import VllmRequest, VllmScheduler, step_of
from semblend.integration.vllm.setup import VllmSetup
from semblend.integration.vllm.start import vllm_start
from semblend.integration.worker.side import WorkerSide
from semblend.integration.worker.unfit import AnyWorker, UnfitWorker, prepared

if TYPE_CHECKING:
    from semblend.integration.vllm.stats import SemBlendPromMetrics, SemBlendStats

logger = logging.getLogger("vllm.semblend")


class SemBlendConnectorV1(KVConnectorBase_V1, SupportsHMA):
    """Reuses donor K/V in stock vLLM; the module docstring lists the order of calls."""

    _asked: ConnectorOptions
    _start: Start
    _setup: VllmSetup | None

    def __new__(
        cls, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any | None = None
    ) -> Any:
        """A connector, or one that does nothing where this vLLM's interface is not as we know it.

        Raises
        ------
        ForeignDistributionError
            If another project's `semblend` was installed over this one.
        SettingsError
            If `kv_connector_extra_config` has an unknown key or invalid value.
        UnsupportedEngineError
            With SEMBLEND_STRICT_START, naming every feature in use that this adapter was not
            proven with.
        """
        for beside in require_this_distribution("vllm").beside:
            logger.warning("SemBlend runs from %s, but %s is also installed", PACKAGE, beside)
        speak_through(logger)
        asked = ConnectorOptions.from_extra_config(
            vllm_config.kv_transfer_config.kv_connector_extra_config
        )
        start = vllm_start(
            SemBlendConnectorV1,
            BASES,
            vllm_config=vllm_config,
            kv_cache_config=kv_cache_config,
            options=asked,
        )
        setup = None
        if role is KVConnectorRole.SCHEDULER:
            start, setup = build(
                start, asked.settings(), lambda start: VllmSetup.of(vllm_config, asked, start)
            )
        if start.does_nothing:
            if role is KVConnectorRole.SCHEDULER:
                RunningMode.nothing(asked.mode, str(start.objection)).say(logger)
            return _idle_connector()(vllm_config, role, kv_cache_config)
        made = super().__new__(cls)
        made._asked, made._start, made._setup = asked, start, setup
        return made

    def __init__(
        self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any | None = None
    ) -> None:
        """Set one side up, as far as vLLM was found fit for it."""
        super().__init__(vllm_config, role, kv_cache_config)
        self.options = options = self._start.allowed(self._asked)
        self.fleet = fleet_part(vllm_config, options)
        self._config = vllm_config
        self.scheduler_side: SchedulerSide[VllmRequest] | None = None
        self.worker_side: AnyWorker | None = None
        if self._setup is not None:
            self._port = VllmScheduler(self._setup)
            self.scheduler_side = SchedulerSide(
                self._setup.scheduler,
                self._port,
                make_remote=self.fleet.join,
                rewrite=self.rewrite_plan,
                chain_port=VllmChains(self._port) if self._port.names_whole_blocks else None,
            )
            self._setup.running.say(logger, unheeded=options.unheeded())
        else:
            self.worker_side = WorkerSide(
                worker_port.worker_setup(vllm_config, options), make_exchange=self.fleet.exchange
            )

    rewrite_plan: PlanRewriter | None = None
    """A last look at every plan, for experiments and tests that subclass this."""

    @property
    def requires_kv_delivery(self) -> bool:
        """False: a donor that is not kept only causes a later miss."""
        return False

    @property
    def _scheduler(self) -> SchedulerSide[VllmRequest]:
        if self.scheduler_side is None:
            raise RuntimeError("a scheduler call on a worker's connector")
        return self.scheduler_side

    @property
    def _worker(self) -> AnyWorker:
        if self.worker_side is None:
            raise RuntimeError("a worker call on a scheduler's connector")
        return self.worker_side

    # -- worker ----------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The cache is allocated."""

        def attach(side: WorkerSide) -> None:
            from vllm.distributed.kv_transfer import get_kv_transfer_group

            group = get_kv_transfer_group()
            if group is not self and (refusals := neighbour_refusals(group, self)):
                raise UnsupportedEngineError(refusals)
            worker_port.attach(side, self._config, kv_caches, nested=self.options.nested)

        self._prepare(attach)

    def bind_model_runner(self, runner: Any) -> None:
        """Called by :class:`semblend.integration.vllm.worker.SemBlendWorker`."""
        self._prepare(lambda side: worker_port.bind(side, self._config, runner))

    def engine_ready(self) -> None:
        """Called by our worker class: the model is compiled and its graphs are recorded."""
        self._worker.engine_ready()

    def _prepare(self, step: Callable[[WorkerSide], None]) -> None:
        """Carry out a step of the worker's start; where it fails, nothing is loaded or kept."""
        side = self._worker
        if isinstance(side, UnfitWorker) or not self.options.mode.loads:
            return
        self.worker_side = prepared(
            side,
            lambda: step(side),
            worker_port.ranks_of(self._config),
            block_size=int(self._config.cache_config.block_size),
            strict=self.options.settings().strict_start,
        )

    def weights_changed(self, how: str) -> None:
        """Called by our worker class: donors of the old weights must be dropped."""
        self._worker.weights_changed(how)

    def before_unmapping(self) -> None:
        """Called by our worker class before the K/V cache's memory is unmapped."""
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
        """Queue captures, whose blocks are held until they are done, and carry out loads."""
        self._worker.after_forward(self._meta())

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Requests whose blocks may be freed now, and requests whose loads have ended."""
        return self._worker.take_freed() or None, self._worker.take_received() or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that must be computed exactly."""
        return self._worker.take_bad_blocks()

    def build_connector_worker_meta(self) -> RankReports | None:
        """What this rank did in the step."""
        report = self._worker.take_report()
        return None if report is None else RankReports(report)

    def _meta(self) -> ConnectorMeta:
        meta = self._get_connector_metadata()
        if not isinstance(meta, ConnectorMeta):
            raise RuntimeError(f"metadata from another connector: {type(meta).__name__}")
        return meta

    # -- scheduler -------------------------------------------------------------------

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """The scheduler's cache manager now exists."""
        super().bind_kv_cache_manager(kv_cache_manager)
        self._port.manager = kv_cache_manager
        if self.options.mode.loads:  # discovery holds no blocks
            _let_go_before_resets(kv_cache_manager, self._scheduler)
        if self._scheduler.chains is not None:
            ask_before_lookups(kv_cache_manager, self._scheduler)

    def on_new_request(self, request: Any) -> None:
        self._scheduler.arrived(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Tokens we can supply beyond the engine's own prefix hit."""
        tokens = self._scheduler.matched_tokens(request, num_computed_tokens)
        # Asynchronous, because a failed synchronous load is never rewound: the V2 runner and
        # asynchronous scheduling then answer garbage (0.32).
        return tokens, bool(tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._scheduler.allocated(
            str(request.request_id), lambda: _only(blocks.get_block_ids()), num_external_tokens
        )

    def get_external_cache_hit_sources(
        self, request: Any, num_external_tokens: int
    ) -> dict[Any, int]:
        """Donor tokens come from host memory; hole tokens are no cache hit."""
        from vllm.v1.metrics.cache_hit_source import CacheHitSource

        reused, holes = self._scheduler.hit_sources(request.request_id, num_external_tokens)
        sources = {CacheHitSource.HOST: reused, CacheHitSource.EXTERNAL_UNSPECIFIED: holes}
        return {source: tokens for source, tokens in sources.items() if tokens}

    def build_connector_meta(self, scheduler_output: Any) -> ConnectorMeta:
        meta = ConnectorMeta()
        self._scheduler.fill(meta, step_of(scheduler_output))
        return meta

    def update_connector_output(self, connector_output: Any) -> None:
        """Process the workers' reports."""
        said = connector_output.kv_connector_worker_meta
        self._scheduler.update(
            said.report if isinstance(said, RankReports) else None,
            connector_output.finished_sending,
        )

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """A request ended; the response reports what was reused."""
        return self._scheduler.ended(request, block_ids)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """The same, for engines with the hybrid cache manager."""
        return self._scheduler.ended(request, _only(block_ids))

    def has_pending_block_frees(self) -> bool:
        """Whether waiting one step frees blocks, so that no request need be preempted."""
        return self._scheduler.has_held_blocks

    def has_pending_push_work(self) -> bool:
        """Whether donors are being moved between machines, or samples are to be computed."""
        return self._scheduler.has_pending_work

    def reset_cache(self) -> bool:
        """Drop all donors (weights changed, or an operator asked)."""
        self._scheduler.reset()
        return True

    # -- both ------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> SemBlendStats | None:
        """Statistics; the scheduler's side has them all."""
        from semblend.integration.vllm.stats import SemBlendStats

        taken = None if self.scheduler_side is None else self.scheduler_side.take_stats()
        return None if taken is None else SemBlendStats(data=taken.data)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> SemBlendStats:
        """Statistics from their plain form."""
        from semblend.integration.vllm.stats import SemBlendStats

        return SemBlendStats() if data is None else SemBlendStats(data=data)

    @classmethod
    def build_prom_metrics(cls, *arguments: Any, **options: Any) -> SemBlendPromMetrics | None:
        """Our metrics in vLLM's /metrics; none where vLLM makes them another way."""
        try:
            from semblend.integration.vllm.stats import SemBlendPromMetrics

            return SemBlendPromMetrics(*arguments, **options)
        except Exception:
            logger.warning("SemBlend has no metrics in this vLLM", exc_info=True)
            return None

    def shutdown(self) -> None:
        """Withdraw what is shared, stop the threads and leave the fleet."""
        for side in (self.scheduler_side, self.worker_side):
            if side is not None:
                side.close()
        self.fleet.leave()


def _only(groups: tuple[list[int], ...]) -> list[int]:
    """The block ids of vLLM's one cache group; with several, which only discovers, none."""
    return groups[0] if len(groups) == 1 else []


def _let_go_before_resets(manager: Any, side: SchedulerSide[VllmRequest]) -> None:
    """Make a prefix cache reset ask us for the blocks we hold.

    vLLM resets only a cache with no block in use, raises if the reset must succeed (pause,
    sleep, `reset_running_requests`), and asks connectors only afterwards.
    """
    reset = manager.reset_prefix_cache

    def reset_prefix_cache() -> bool:
        side.let_go_of_blocks()
        return bool(reset())

    manager.reset_prefix_cache = reset_prefix_cache


def _idle_connector() -> Any:
    answers: dict[str, Callable[[], Any]] = {
        "get_num_new_matched_tokens": lambda: (0, False),
        "build_connector_meta": ConnectorMeta,
        "request_finished": lambda: (False, None),
        "request_finished_all_groups": lambda: (False, None),
    }
    return idle_class("IdleConnector", BASES, answers)
