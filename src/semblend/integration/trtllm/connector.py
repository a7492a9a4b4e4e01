"""`SemBlendKvConnectorScheduler` and `SemBlendKvConnectorWorker`: what TensorRT-LLM loads.

    KvCacheConnectorConfig(
        connector_module="semblend.integration.trtllm.connector",
        connector_scheduler_class="SemBlendKvConnectorScheduler",
        connector_worker_class="SemBlendKvConnectorWorker",
    )

Nothing but the interface is here. Calls in a step, in the executor's order:

scheduler: get_num_new_matched_tokens, update_state_after_alloc, build_connector_meta
worker:    bind_connector_meta, start_load_kv, (wait_for_layer_load, save_kv_layer a layer),
           wait_for_save, get_finished
scheduler: request_finished

See docs/trtllm.md for how to set it up and for what was, and was not, run.
"""

from __future__ import annotations

import logging
import weakref
from typing import Any

from semblend.core.distribution import require_this_distribution
from semblend.integration.ladder_socket import DeskServer
from semblend.integration.refusals import Refusal, UnsupportedEngineError
from semblend.integration.scheduler.engine_planner import PlanRewriter
from semblend.integration.starting import Start
from semblend.integration.trtllm import upstream
from semblend.integration.trtllm.engine_facts import EngineFacts
from semblend.integration.trtllm.interfaces import SchedulerOutput, UpstreamRequest
from semblend.integration.trtllm.metadata import ConnectorMeta
from semblend.integration.trtllm.options import ConnectorOptions
from semblend.integration.trtllm.pool_view import PoolView
from semblend.integration.trtllm.scheduler_side import TrtSchedulerSide
from semblend.integration.trtllm.setup import TrtSetup
from semblend.integration.trtllm.start import idle_scheduler, idle_worker, trtllm_start
from semblend.integration.trtllm.support import MANAGER_REMEDY
from semblend.integration.trtllm.wiring import link_of, unlink
from semblend.integration.trtllm.worker_side import TrtWorkerSide
from semblend.kv.rotary_spec import RotarySpec
from semblend.kv.rotary_table import RotaryTable

logger = logging.getLogger("semblend.trtllm")

_SchedulerBase, _WorkerBase = upstream.base_classes()
_desks: weakref.WeakSet[TrtSchedulerSide] = weakref.WeakSet()


class SemBlendKvConnectorScheduler(_SchedulerBase):  # type: ignore[misc, valid-type]
    """Offers donors' K/V to requests; lives in the leader's process."""

    supports_attention_dp = False
    _start: Start

    def __new__(cls, llm_args: Any) -> Any:
        """A connector, or one that does nothing where the interface is not as we know it.

        Raises
        ------
        UnsupportedEngineError
            With SEMBLEND_STRICT_START, naming everything that stands in the way.
        """
        start = trtllm_start(llm_args)
        if start.does_nothing:
            return idle_scheduler(_SchedulerBase, start)(llm_args)
        made = super().__new__(cls)
        made._start = start
        return made

    def __init__(self, llm_args: Any) -> None:
        """Set up; whatever is unknown or unproven means discovery, never a failed start.

        Raises
        ------
        ForeignDistributionError
            If another project's `semblend` was installed over this one.
        SettingsError
            If SEMBLEND_TRTLLM_CONFIG or a SEMBLEND_* variable has a value it cannot take.
        """
        require_this_distribution("trtllm")
        super().__init__(llm_args)
        options = ConnectorOptions.from_env()
        setup = TrtSetup.of(llm_args, options, link_of(llm_args), self._start)
        setup.running.say(logger, unheeded=options.unheeded())
        self.side = TrtSchedulerSide(setup, rewrite=self.rewrite_plan)
        self.announcer = self.side.announcer
        self.desk_server: DeskServer | None = None
        if options.ladder_socket is not None:
            self.desk_server = DeskServer(self.side, options.ladder_socket)
        _desks.add(self.side)

    rewrite_plan: PlanRewriter | None = None
    """A last look at every plan, for experiments and tests that make a class of this one."""

    def get_num_new_matched_tokens(
        self, request: UpstreamRequest, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """Tokens that are supplied beyond the engine's own prefix hit."""
        return self.side.matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: UpstreamRequest, block_ids: list[int]) -> None:
        """Blocks are allocated."""
        self.side.allocated(request, block_ids)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> ConnectorMeta:
        """This step's orders."""
        return self.side.build_meta(scheduler_output)

    def request_finished(self, request: UpstreamRequest, cache_block_ids: list[int]) -> bool:
        """A request ends; True keeps its blocks until they are copied."""
        return self.side.request_finished(request)

    def update_state_after_alloc_by_layer_group(
        self, request: UpstreamRequest, block_ids_by_layer_group: list[list[int]]
    ) -> None:
        """The newer form. Without it an engine with several layer groups does not start."""
        if len(block_ids_by_layer_group) == 1:
            self.side.allocated(request, block_ids_by_layer_group[0])

    def request_finished_by_layer_group(
        self, request: UpstreamRequest, cache_block_ids_by_layer_group: list[list[int]]
    ) -> bool:
        """The newer form."""
        return self.side.request_finished(request)

    def wait_for_initialization(self) -> None:
        """Nothing to wait for."""

    def shutdown(self) -> None:
        """Say goodbye to the fleet, then stop. TensorRT-LLM itself never calls this."""
        if self.announcer is not None:
            self.announcer.close()
        if self.desk_server is not None:
            self.desk_server.close()
        _desks.discard(self.side)
        self.side.close()
        unlink(self._llm_args)


class SemBlendKvConnectorWorker(_WorkerBase):  # type: ignore[misc, valid-type]
    """Puts donors' K/V into the pool of one rank, and keeps prompts' K/V."""

    supports_attention_dp = False

    def __new__(cls, llm_args: Any) -> Any:
        """A worker's half, or one that does nothing beside a scheduler's that does nothing."""
        if trtllm_start(llm_args).does_nothing:
            return idle_worker(_WorkerBase)(llm_args)
        return super().__new__(cls)

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self._options = ConnectorOptions.from_env()
        self._facts = EngineFacts.of(llm_args)
        leader = upstream.rank() == 0
        self._link = link_of(llm_args) if leader else None
        self.side = TrtWorkerSide(
            host_donor_bytes=self._options.host_donor_bytes,
            ranks=self._facts.tensor_parallel or 1,
            gather=upstream.all_gather,
            tell=None if self._link is None else self._link.report,
        )
        if self._link is not None:
            self._link.note("worker_initialized", ranks=self._facts.tensor_parallel)

    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        """The pool is allocated. One this adapter does not know is left alone."""
        try:
            spec = RotarySpec.from_config(self._facts.text_config)
            view = PoolView(
                kv_cache_tensor, block_size=self._facts.block_size or 0, head_dim=spec.head_dim
            )
            with view.scratch_kept():
                self.side.register(view, RotaryTable.from_spec(spec), rank=upstream.rank())
        except Exception as error:
            self._refuse(f"{type(error).__name__}: {error}")
            return
        if self._link is not None:
            self._link.registered(token_bytes=view.token_bytes, layers=view.layer_count)
            self._link.note(
                "kv_cache_registered",
                blocks=view.blocks,
                layers=view.layer_count,
                token_bytes=view.token_bytes,
                dtype=str(view.dtype).removeprefix("torch."),
            )

    def register_kv_cache_layout(self, layout: Any) -> None:
        """The newer form, of a cache manager that may honour less than was offered."""
        self._refuse(f"KVCacheManagerV2 ({len(layout.groups)} layer groups); {MANAGER_REMEDY}")

    def bind_connector_meta(self, metadata: object) -> None:
        """This step's orders."""
        super().bind_connector_meta(metadata)
        if isinstance(metadata, ConnectorMeta):
            self.side.bind(metadata)

    def start_load_kv(self, stream: Any) -> None:
        """Put in place what was offered."""
        self.side.start_load(stream)

    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
        """Nothing: loads stand on the forward's own stream, or their request is parked."""

    def save_kv_layer(self, layer_idx: int, stream: Any) -> None:
        """Nothing: prompts are captured whole, after the forward."""

    def wait_for_save(self, stream: Any) -> None:
        """Begin to copy what becomes a donor; its blocks stay until that is done."""
        self.side.after_forward(stream)

    def get_finished(
        self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        """Requests that are saved, and requests that are loaded."""
        return self.side.finished(finished_gen_req_ids, started_loading_req_ids)

    def shutdown(self) -> None:
        """Stop the threads. TensorRT-LLM itself never calls this."""
        self.side.close()

    def _refuse(self, reason: str) -> None:
        if self._options.settings().strict_start:
            raise UnsupportedEngineError([Refusal(feature=reason)])
        logger.warning("SemBlend loads nothing in this engine: %s", reason)
        if self._link is not None:
            self._link.refused((reason,))


def local_desks() -> tuple[TrtSchedulerSide, ...]:
    """Desks of the engines in this process, for ladder clients that run beside them."""
    return tuple(_desks)
