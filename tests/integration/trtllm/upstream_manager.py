"""TensorRT-LLM's own connector manager on a CPU, loaded from a file outside this repository.

Everything around it is a stand-in: bindings, request states, collectives. What runs is
upstream's bookkeeping and upstream's abstract classes, and the adapter between them and
the simulated executor.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.integration.trtllm.generations import (
    NEWER,
    OLDER,
    Generation,
    LlmRequest,
    ScheduledRequests,
)
from tests.integration.trtllm.paged import BlockManager
from tests.integration.trtllm.ranks import Ranks

VARIABLE = "SEMBLEND_TRTLLM_SRC"
CONNECTOR = "semblend.integration.trtllm.connector"


def source() -> Path | None:
    """The upstream file to run, if one is named."""
    given = os.environ.get(VARIABLE, "")
    return Path(given) if given else None


def generation_of(path: Path) -> Generation:
    """Which generation a file is of: the newer one lies one folder deeper."""
    return NEWER if "from ..scheduler" in path.read_text(encoding="utf-8") else OLDER


class States:
    """Stands in for LlmRequestState, in the simulated executor's words."""

    CONTEXT_INIT = "context"
    DISAGG_GENERATION_TRANS_IN_PROGRESS = "parked"
    DISAGG_CONTEXT_TRANS_IN_PROGRESS = "saving"


class _Switch:
    """The collectives of whichever engine is running."""

    ranks = Ranks(1)


def _stubs() -> dict[str, types.ModuleType]:
    contents: dict[str, dict[str, Any]] = {
        "tensorrt_llm": {},
        "tensorrt_llm._utils": {
            "mpi_rank": lambda: _Switch.ranks.rank(),
            "mpi_allgather": lambda value: _Switch.ranks.all_gather(value),
            "mpi_broadcast": lambda value, root=0: _Switch.ranks.broadcast(value, root),
        },
        "tensorrt_llm._torch": {},
        "tensorrt_llm._torch.pyexecutor": {},
        "tensorrt_llm._torch.pyexecutor.connectors": {},
        "tensorrt_llm._torch.pyexecutor.kv_cache": {},
        "tensorrt_llm._torch.pyexecutor.kv_cache.kv_cache_manager_v2": {
            "KVCacheManagerV2": type("KVCacheManagerV2", (), {})
        },
        "tensorrt_llm._torch.pyexecutor.scheduler": {"ScheduledRequests": ScheduledRequests},
        "tensorrt_llm._torch.pyexecutor.llm_request": {"get_draft_token_length": lambda _: 0},
        "tensorrt_llm.bindings": {"LlmRequestState": States},
        "tensorrt_llm.bindings.internal": {},
        "tensorrt_llm.bindings.internal.batch_manager": {
            "KvCacheConnectorManager": type("KvCacheConnectorManager", (), {}),
            "LlmRequest": LlmRequest,
        },
        "tensorrt_llm.llmapi": {},
        "tensorrt_llm.llmapi.llm_args": {"TorchLlmArgs": object},
        "tensorrt_llm.logger": {"logger": SimpleNamespace(warning_once=lambda *_, **__: None)},
    }
    modules = {}
    for name, values in contents.items():
        module = modules[name] = types.ModuleType(name)
        module.__path__ = []  # type: ignore[attr-defined]
        vars(module).update(values)
    return modules


@contextmanager
def upstream(path: Path) -> Iterator[tuple[Any, Any]]:
    """The upstream module, and the adapter's connector made upon its classes."""
    generation = generation_of(path)
    modules = _stubs()
    spec = importlib.util.spec_from_file_location(generation.module, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = modules[generation.module] = importlib.util.module_from_spec(spec)
    before = {name: sys.modules.get(name) for name in (*modules, CONNECTOR)}
    sys.modules.update(modules)
    try:
        spec.loader.exec_module(loaded)
        sys.modules.pop(CONNECTOR, None)
        yield loaded, importlib.import_module(CONNECTOR)
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


def manager_of(module: Any) -> Any:
    """A manager class for the tests' engines that drives upstream's, one a rank."""

    class UpstreamManager:
        def __init__(
            self, scheduler: Any, workers: list[Any], ranks: Ranks, generation: Generation
        ) -> None:
            _Switch.ranks = ranks
            self.workers = workers
            self._ranks = ranks
            self._managers = ranks.on_all(
                lambda rank: module.KvCacheConnectorManager(
                    workers[rank], scheduler if rank == 0 else None
                )
            )

        def _all(self, name: str, *arguments: Any) -> Any:
            return self._ranks.on_all(lambda rank: getattr(self._managers[rank], name)(*arguments))[
                0
            ]

        def should_add_sequence(self, request: LlmRequest) -> bool:
            first = self._managers[0]
            known = getattr(first, "should_add_sequence", None)
            return True if known is None else bool(known(request))

        def get_num_new_matched_tokens(self, request: LlmRequest, computed: int) -> int:
            return int(self._all("get_num_new_matched_tokens", request, computed))

        def update_state_after_alloc(self, request: LlmRequest, block_ids: list[int]) -> None:
            self._all("update_state_after_alloc", request, block_ids)

        def build_scheduler_output(self, batch: ScheduledRequests, blocks: BlockManager) -> None:
            view = SimpleNamespace(
                get_cache_indices=lambda request: list(request.block_ids),
                commit_and_get_block_hashes=lambda request: [],
                get_priority_by_block_id=lambda block: 35,
            )
            self._all("build_scheduler_output", batch, view)

        def take_scheduled_requests_pending_load(self, batch: ScheduledRequests) -> None:
            if hasattr(self._managers[0], "take_scheduled_requests_pending_load"):
                self._all("take_scheduled_requests_pending_load", batch)
                return
            # This generation's executor parks them itself.
            loading = self._managers[0].new_async_requests.loading_ids
            for request in batch.context_requests:
                if request.request_id in loading:
                    request.state = States.DISAGG_GENERATION_TRANS_IN_PROGRESS
            batch.context_requests = [
                one for one in batch.context_requests if one.request_id not in loading
            ]

        def handle_metadata(self) -> None:
            self._all("handle_metadata")

        def start_load_kv(self) -> None:
            self._ranks.on_all(lambda rank: self._managers[rank].worker.start_load_kv(None))

        def layer(self, index: int) -> None:
            for manager in self._managers:
                manager.worker.wait_for_layer_load(index, None)
                manager.worker.save_kv_layer(index, None)

        def wait_for_save(self) -> None:
            self._ranks.on_all(lambda rank: self._managers[rank].worker.wait_for_save(None))

        def request_finished(self, request: LlmRequest, block_ids: list[int]) -> bool:
            return bool(self._all("request_finished", request, block_ids))

        def get_finished(self) -> list[LlmRequest]:
            return list(self._all("get_finished"))

        def _transfers(self) -> list[Any]:
            return [
                table
                for manager in self._managers
                for table in (
                    manager.new_async_requests,
                    manager.pending_async_requests,
                    manager.local_finished_async_requests,
                )
            ]

        def has_pending_transfers(self, request_id: int) -> bool:
            return any(
                request_id in one.saving or request_id in one.loading for one in self._transfers()
            )

        @property
        def busy(self) -> bool:
            return any(one.saving or one.loading for one in self._transfers())

    return UpstreamManager
