"""Passes of the engine's own model over holes, before the engine's own forward.

Every hole [s, e) is a virtual sequence of an extend batch: the request's own row of the
slot table, s tokens present, e - s tokens to compute. Where an attention backend writes the
K/V of a layer before it reads any (`pass_proof`), holes of one request share a pass; elsewhere
a pass holds at most one hole of a request, which is then nothing but the next chunk of a
chunked prefill.

Nothing here waits for the device: the scheduler runs ahead of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch

from semblend.core.faults import FaultPoint, fault_point
from semblend.core.plan import Hole


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualSequence:
    """A run of one request's tokens to be computed on top of what precedes it."""

    row: int
    """Which request of the batch."""
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PassLimits:
    """What one pass may hold."""

    sequences: int
    """The engine's input buffers have this many rows: more would crash it."""
    tokens: int
    many_holes: bool
    """Whether holes of one request may share a pass."""


def passes_over(
    holes: Mapping[int, Sequence[Hole]], limits: PassLimits
) -> Iterator[tuple[VirtualSequence, ...]]:
    """Passes that compute every row's holes, each row's in order.

    A hole larger than a pass is cut; what is cut off waits for the next pass.
    """
    waiting = {row: sorted(runs) for row, runs in holes.items() if runs}
    while waiting:
        taken: list[VirtualSequence] = []
        room = limits.tokens
        for row in list(waiting):
            runs = waiting[row]
            while runs and room and len(taken) < limits.sequences:
                run = runs.pop(0)
                end = min(run.end, run.start + room)
                taken.append(VirtualSequence(row=row, start=run.start, end=end))
                room -= end - run.start
                if end < run.end:
                    runs.insert(0, Hole(end, run.end))
                if end < run.end or not limits.many_holes:
                    break
            if not runs:
                del waiting[row]
        yield tuple(taken)


class NestedPass:
    """Runs the engine's model over virtual sequences of a scheduled batch."""

    def __init__(self, runner: Any, limits: PassLimits) -> None:
        self._runner = runner
        self.limits = limits

    def run(
        self,
        batch: Any,
        holes: Mapping[int, Sequence[Hole]],
        *,
        watched: Callable[[Sequence[VirtualSequence]], None] | None = None,
    ) -> int:
        """Compute the K/V of all holes; returns how many tokens that were.

        `watched` is told the sequences of each pass, in their order; modules that it watches
        are called one by one.
        """
        computed = 0
        for sequences in passes_over(holes, self.limits):
            if watched is not None:
                watched(sequences)
            calling: AbstractContextManager[None] = nullcontext()
            with calling if watched is None else self._calling_modules():
                self._forward(self._batch_of(batch, sequences))
            computed += sum(item.end - item.start for item in sequences)
        return computed

    def one_pass(self, batch: Any, holes: Sequence[Hole]) -> None:
        """Compute holes of the batch's first request in one pass, whatever the limits say."""
        sequences = [VirtualSequence(row=0, start=hole.start, end=hole.end) for hole in holes]
        self._forward(self._batch_of(batch, sequences))

    @contextmanager
    def _calling_modules(self) -> Iterator[None]:
        """No prefill graph: one that is replayed calls no module, and hooks are not called."""
        runner = self._runner
        graphs, runner.prefill_cuda_graph_runner = runner.prefill_cuda_graph_runner, None
        try:
            yield
        finally:
            runner.prefill_cuda_graph_runner = graphs

    @fault_point(FaultPoint.NESTED_PASS)
    def _forward(self, nested: Any) -> None:
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch

        forward = ForwardBatch.init_new(
            nested,
            self._runner,
            capture_hidden_mode=CaptureHiddenMode.NULL,
            return_hidden_states_before_norm=False,
        )
        self._runner.forward(forward)

    def _batch_of(self, batch: Any, sequences: Sequence[VirtualSequence]) -> Any:
        """An extend batch of virtual sequences over the rows of `batch`.

        A copy of the scheduled batch, so that fields unknown here keep the engine's own
        values; what depends on the sequences, on sampling or on logprobs is replaced.
        """
        rows = [item.row for item in sequences]
        requests = [batch.reqs[row] for row in rows]
        lengths = [item.end - item.start for item in sequences]
        ends = torch.tensor([item.end for item in sequences], dtype=torch.int64)
        indices = batch.req_pool_indices_cpu[rows]
        table = self._runner.req_to_token_pool.req_to_token
        slots = [
            table[int(index), item.start : item.end]
            for index, item in zip(indices, sequences, strict=True)
        ]
        tokens = [
            token
            for request, item in zip(requests, sequences, strict=True)
            for token in request.full_untruncated_fill_ids[item.start : item.end]
        ]
        sizes = [len(tokens), len(sequences), len(sequences)]
        values = [*tokens, *ends.tolist(), *indices.tolist()]
        there = torch.split(uploaded(values, self._runner.device), sizes)
        input_ids, on_device, on_device_indices = there
        nested = copy(batch)
        replaced: dict[str, Any] = {
            "reqs": requests,
            "input_ids": input_ids,
            "prefill_input_ids_cpu": None,
            "req_pool_indices": on_device_indices.to(batch.req_pool_indices.dtype),
            "req_pool_indices_cpu": indices,
            "prefix_lens": [item.start for item in sequences],
            "extend_lens": lengths,
            "extend_num_tokens": sum(lengths),
            "seq_lens": on_device,
            "seq_lens_cpu": ends,
            "seq_lens_sum": int(ends.sum()),
            "orig_seq_lens": on_device.to(torch.int32),
            "out_cache_loc": torch.cat(slots).to(torch.int64),
            "return_logprob": False,
            "top_logprobs_nums": None,
            "token_ids_logprobs": None,
            "extend_logprob_start_lens": lengths,
            "extend_input_logprob_token_ids": None,
            "multimodal_inputs": [None] * len(requests),
            "is_prefill_only": True,
            "sampling_info": None,
            "has_grammar": False,
            "spec_info": None,
        }
        for name, value in replaced.items():
            setattr(nested, name, value)
        return nested


def uploaded(values: Sequence[int], device: str | torch.device) -> torch.Tensor:
    """Numbers on a device, int64 [values], without waiting for it."""
    pinned = torch.device(device).type == "cuda"
    host = torch.tensor(values, dtype=torch.int64, pin_memory=pinned)
    return host.to(device, non_blocking=True)
