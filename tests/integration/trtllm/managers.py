"""The connector manager, written by us from the interface's facts: call order and bookkeeping.

It stands between the executor and the adapter as TensorRT-LLM's own does: the scheduler is
asked on the leader, metadata is pickled to every rank, finished requests count when all
ranks have named them. `upstream_manager.py` drives the real one through the same methods.
"""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

from tests.integration.trtllm.generations import Generation, LlmRequest, ScheduledRequests
from tests.integration.trtllm.paged import BlockManager
from tests.integration.trtllm.ranks import Ranks


class SimulatedManager:
    """One engine's connector: a scheduler on rank 0 and a worker a rank."""

    def __init__(
        self, scheduler: Any, workers: list[Any], ranks: Ranks, generation: Generation
    ) -> None:
        self.scheduler = scheduler
        self.workers = workers
        self.calls: list[str] = []
        """In order: what the tests of the call order look at."""
        self._ranks = ranks
        self._generation = generation
        self._new_loading: dict[int, LlmRequest] = {}
        self._new_saving: dict[int, LlmRequest] = {}
        self._loading: dict[int, LlmRequest] = {}
        self._saving: dict[int, LlmRequest] = {}
        self._said: list[tuple[set[int], set[int]]] = [(set(), set()) for _ in workers]
        self._loaded: set[int] = set()
        self._known: dict[int, tuple[int, int]] = {}
        """Blocks and tokens already reported for a request."""
        self._external: dict[int, int] = {}
        self._output: Any = None

    # -- scheduling --------------------------------------------------------------------

    def should_add_sequence(self, request: LlmRequest) -> bool:
        return request.request_id not in self._loaded

    def get_num_new_matched_tokens(self, request: LlmRequest, computed: int) -> int:
        self.calls.append("get_num_new_matched_tokens")
        tokens, later = self._ranks.on(
            0, lambda: self.scheduler.get_num_new_matched_tokens(request, computed)
        )
        if later and not tokens:
            raise RuntimeError("0 tokens cannot be loaded later")
        if later:
            self._new_loading[request.request_id] = request
        self._external[request.request_id] = tokens
        return int(tokens)

    def update_state_after_alloc(self, request: LlmRequest, block_ids: list[int]) -> None:
        self.calls.append("update_state_after_alloc")
        self._ranks.on(0, lambda: self.scheduler.update_state_after_alloc(request, block_ids))

    def build_scheduler_output(self, batch: ScheduledRequests, blocks: BlockManager) -> None:
        new, cached = [], []
        for request in batch.context_requests:
            if request.request_id in self._new_loading:
                continue
            is_new = request.request_id not in self._known
            data = self._data(request)
            data.computed_position -= self._external.get(request.request_id, 0)
            (new if is_new else cached).append(data)
        cached += [self._data(request) for request in batch.generation_requests]
        self._external = {}
        self._output = SimpleNamespace(new_requests=new, cached_requests=cached)

    def _data(self, request: LlmRequest) -> SimpleNamespace:
        seen_blocks, seen_tokens = self._known.get(request.request_id, (0, 0))
        tokens = request.get_tokens(0)
        self._known[request.request_id] = (len(request.block_ids), len(tokens))
        in_context = request.state == "context"
        values = {
            "request_id": request.request_id,
            "new_tokens": tokens[seen_tokens:],
            "new_block_ids": request.block_ids[seen_blocks:],
            "computed_position": (
                request.context_current_position if in_context else len(tokens) - 1
            ),
            "num_scheduled_tokens": (
                min(request.context_remaining_length, request.context_chunk_size)
                if in_context
                else 1
            ),
            "block_hashes": [],
            "priorities": None,
            "cache_salt": request.salt,
            "new_block_ids_by_layer_group": [],
        }
        shown = self._generation.request_fields
        return SimpleNamespace(**{name: values[name] for name in shown})

    def take_scheduled_requests_pending_load(self, batch: ScheduledRequests) -> None:
        for request in batch.context_requests:
            if request.request_id in self._new_loading:
                request.state = "parked"
        batch.context_requests = [one for one in batch.context_requests if one.state == "context"]

    def handle_metadata(self) -> None:
        if self._output is None:
            return
        self.calls.append("build_connector_meta")
        output, self._output = self._output, None
        meta = self._ranks.on(0, lambda: self.scheduler.build_connector_meta(output))
        sent = pickle.dumps(meta)
        self._ranks.on_all(lambda rank: self.workers[rank].bind_connector_meta(pickle.loads(sent)))

    # -- a step's forward --------------------------------------------------------------

    def start_load_kv(self) -> None:
        self.calls.append("start_load_kv")
        self._ranks.on_all(lambda rank: self.workers[rank].start_load_kv(None))

    def layer(self, index: int) -> None:
        for worker in self.workers:
            worker.wait_for_layer_load(index, None)
            worker.save_kv_layer(index, None)

    def wait_for_save(self) -> None:
        self.calls.append("wait_for_save")
        self._ranks.on_all(lambda rank: self.workers[rank].wait_for_save(None))

    # -- the end -----------------------------------------------------------------------

    def request_finished(self, request: LlmRequest, block_ids: list[int]) -> bool:
        self.calls.append("request_finished")
        self._loaded.discard(request.request_id)
        saving = self._ranks.on(0, lambda: self.scheduler.request_finished(request, block_ids))
        if saving:
            self._new_saving[request.request_id] = request
            request.state = "saving"
        return bool(saving)

    def get_finished(self) -> list[LlmRequest]:
        saving, loading = list(self._new_saving), list(self._new_loading)
        self._saving |= self._new_saving
        self._loading |= self._new_loading
        self._new_saving, self._new_loading = {}, {}
        answers = self._ranks.on_all(lambda rank: self.workers[rank].get_finished(saving, loading))
        for (saved, loaded), (said_saved, said_loaded) in zip(answers, self._said, strict=True):
            assert set(saved) <= self._saving.keys(), "an id that was not handed in"
            assert set(loaded) <= self._loading.keys(), "an id that was not handed in"
            assert not set(saved) & said_saved, "an id said twice"
            assert not set(loaded) & said_loaded, "an id said twice"
            said_saved.update(saved)
            said_loaded.update(loaded)
        everybody_saved = set.intersection(*(saved for saved, _ in self._said))
        everybody_loaded = set.intersection(*(loaded for _, loaded in self._said))
        for saved, loaded in self._said:
            saved -= everybody_saved
            loaded -= everybody_loaded
        for request_id in everybody_loaded:
            request = self._loading.pop(request_id)
            if request.state == "parked":
                request.state = "context"
                self._loaded.add(request_id)
        return [self._saving.pop(request_id) for request_id in sorted(everybody_saved)]

    def has_pending_transfers(self, request_id: int) -> bool:
        return any(
            request_id in table
            for table in (self._new_loading, self._loading, self._new_saving, self._saving)
        )

    @property
    def busy(self) -> bool:
        return bool(self._new_saving or self._saving or self._new_loading or self._loading)
