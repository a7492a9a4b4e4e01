"""The executor's loop, in TensorRT-LLM's order of calls, around a real model and pool.

admission → add_sequence (radix match, the connector's offer, allocation) → metadata →
loads → forward, chunk by chunk → saves → states → termination → radix commit → finished
transfers. One process plays all ranks.
"""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import torch

from tests.integration.trtllm.generations import Generation, LlmRequest, ScheduledRequests
from tests.integration.trtllm.paged import BlockManager, OutOfBlocksError, PagedModel


class Executor:
    """Runs requests; without a manager it is an engine without a connector."""

    def __init__(
        self,
        model: Any,
        *,
        generation: Generation,
        manager: Any = None,
        blocks: int = 256,
        block_size: int = 16,
        chunk_tokens: int = 4096,
        ranks: int = 1,
    ) -> None:
        self.paged = PagedModel(model, blocks=blocks, block_size=block_size, ranks=ranks)
        self.blocks = BlockManager(blocks, block_size)
        self.manager = manager
        self.generation = generation
        self.block_reuse = True
        self.computed_tokens = 0
        """Prompt tokens that went through a forward."""
        self.trace: list[tuple[int, int, int]] = []
        """(request id, start, end) of every context chunk computed."""
        self._chunk_tokens = chunk_tokens
        self._ids = itertools.count(100)
        self._waiting: list[LlmRequest] = []
        self._active: list[LlmRequest] = []
        self.finished: dict[int, LlmRequest] = {}

    # -- requests ----------------------------------------------------------------------

    def submit(
        self, prompt: Any, *, max_new_tokens: int = 4, cache_salt: str | None = None
    ) -> LlmRequest:
        request = LlmRequest(
            next(self._ids),
            [int(token) for token in prompt],
            max_new_tokens=max_new_tokens,
            cache_salt=cache_salt,
            generation=self.generation,
        )
        self._waiting.append(request)
        return request

    def run(self, prompt: Any, **options: Any) -> LlmRequest:
        request = self.submit(prompt, **options)
        while request.request_id not in self.finished:
            self.step()
        return request

    def drain(self) -> None:
        """Until nothing is under way, transfers included."""
        while self._waiting or self._active or (self.manager is not None and self.manager.busy):
            self.step()

    # -- one iteration -----------------------------------------------------------------

    def step(self) -> None:
        batch = self._schedule()
        if len(batch):
            self._prepare(batch)
            if self.manager is not None:
                self.manager.take_scheduled_requests_pending_load(batch)
                self.manager.handle_metadata()
                self.manager.start_load_kv()
            if len(batch):
                self._forward(batch)
                if self.manager is not None:
                    self.manager.wait_for_save()
                self._update(batch)
        self._cancel()
        for request in [one for one in self._active if one.state == "complete"]:
            self._terminate(request)
        if self.manager is not None:
            for request in self.manager.get_finished():
                self._free(request)

    def _schedule(self) -> ScheduledRequests:
        reserved = 0
        while self._waiting:
            request = self._waiting[0]
            needed = -(-(request.prompt_len + request.max_new_tokens) // self.blocks.block_size)
            if needed + reserved > self.blocks.available():
                break
            reserved += needed
            self._active.append(self._waiting.pop(0))
        batch = ScheduledRequests()
        for request in self._active:
            if request.state == "context":
                self._chunk(request)
                last = request.context_chunk_size >= request.context_remaining_length
                (batch.last_chunk if last else batch.chunking).append(request)
            elif request.state == "generation":
                batch.generation_requests.append(request)
        return batch

    def _chunk(self, request: LlmRequest) -> None:
        """Chunks end on block boundaries, except the last."""
        size = self.blocks.block_size
        position = request.context_current_position
        end = position + self._chunk_tokens
        if end < request.prompt_len:
            end = end // size * size
        request.context_chunk_size = min(end, request.prompt_len) - position

    def _prepare(self, batch: ScheduledRequests) -> None:
        manager = self.manager
        for request in batch.context_requests:
            if request.added or (manager is not None and not manager.should_add_sequence(request)):
                continue
            request.added = True
            matched = self.blocks.match(request) if self.block_reuse else []
            computed = len(matched) * self.blocks.block_size
            offered = 0
            if manager is not None:
                offered = manager.get_num_new_matched_tokens(request, computed)
            if not offered + computed < request.prompt_len:
                raise RuntimeError("a connector must leave at least one token")
            total = request.prompt_len + request.max_new_tokens
            request.block_ids = self.blocks.take(matched, -(-total // self.blocks.block_size))
            request.context_current_position = computed + offered
            self._chunk(request)
            if manager is not None:
                prompt_blocks = -(-request.prompt_len // self.blocks.block_size)
                manager.update_state_after_alloc(request, request.block_ids[:prompt_blocks])
        # A request may have come to its last chunk by what was offered.
        everybody = batch.context_requests
        batch.chunking, batch.last_chunk = [], []
        for request in everybody:
            last = request.context_chunk_size >= request.context_remaining_length
            (batch.last_chunk if last else batch.chunking).append(request)
        if manager is not None:
            manager.build_scheduler_output(batch, self.blocks)

    def _forward(self, batch: ScheduledRequests) -> None:
        if self.manager is not None:
            for layer in range(self.paged.layers):
                self.manager.layer(layer)
        for request in batch.context_requests:
            start = request.context_current_position
            end = start + request.context_chunk_size
            request.logits.append(self.paged.forward(request, start, end))
            self.computed_tokens += end - start
            self.trace.append((request.request_id, start, end))
        for request in batch.generation_requests:
            size = len(request.get_tokens(0))
            request.logits.append(self.paged.forward(request, size - 1, size))

    def _update(self, batch: ScheduledRequests) -> None:
        for request in batch.context_requests:
            request.context_current_position += request.context_chunk_size
            if request.context_remaining_length:
                request.logits.pop()
                continue
            request.state = "generation"
            if self.block_reuse:
                self.blocks.publish(request)
            self._sample(request)
        for request in batch.generation_requests:
            self._sample(request)

    def _sample(self, request: LlmRequest) -> None:
        request.append(int(request.logits[-1].argmax()))
        if len(request.generated) >= request.max_new_tokens:
            request.state = "complete"

    # -- the end -----------------------------------------------------------------------

    def cancel(self, request: LlmRequest) -> None:
        request.cancelled = True

    def _cancel(self) -> None:
        for request in [one for one in self._waiting if one.cancelled]:
            self._waiting.remove(request)
            self.finished[request.request_id] = request
        for request in self._active:
            if request.cancelled and request.state != "complete":
                pending = self.manager is not None and self.manager.has_pending_transfers(
                    request.request_id
                )
                if not pending:  # pages stay while a transfer may touch them
                    request.state = "complete"

    def _terminate(self, request: LlmRequest) -> None:
        self._active.remove(request)
        self.finished[request.request_id] = request
        held = False
        if self.manager is not None and request.added:
            prompt_blocks = -(-request.prompt_len // self.blocks.block_size)
            held = self.manager.request_finished(request, request.block_ids[:prompt_blocks])
        if not held:
            self._free(request)

    def _free(self, request: LlmRequest) -> None:
        self.blocks.release(request.block_ids)
        request.block_ids = []


class SimulatedLLM:
    """`LLM.generate_async` over an executor; several calls advance it together."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.requests: list[tuple[int, str | None]] = []
        """(prompt tokens, salt) of everything submitted."""

    async def generate_async(
        self, inputs: list[int], sampling_params: Any, *, cache_salt: str | None = None
    ) -> Any:
        self.requests.append((len(inputs), cache_salt))
        request = self.executor.submit(
            inputs, max_new_tokens=sampling_params.max_tokens, cache_salt=cache_salt
        )
        while request.request_id not in self.executor.finished:
            self.executor.step()
            await asyncio.sleep(0)
        return SimpleNamespace(
            token_ids=request.generated,
            logits=torch.stack(request.logits),
            request_id=request.request_id,
        )


__all__ = ["Executor", "OutOfBlocksError", "SimulatedLLM"]
