"""Passes of the engine's own model over holes, before the engine's own forward.

Every hole [s, e) is a virtual sequence of an extend batch: the request's own row of the
slot table, s tokens present, e - s tokens to compute. Where an attention backend writes the
K/V of a layer before it reads any (`pass_proof`), holes of one request share a pass; elsewhere
a pass holds at most one hole of a request, which is then nothing but the next chunk of a
chunked prefill.

Nothing here waits for the device: the scheduler runs ahead of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from functools import partial
from typing import Any

import numpy as np
import torch

from semblend.core.errors import UnsupportedModelError
from semblend.core.faults import FaultPoint, fault_point
from semblend.integration.probing import ProbeUnavailableError, watch_queries
from semblend.integration.worker.host_ranks import MeetingRanks
from semblend.integration.worker.port import Watch
from semblend.integration.worker.sequences import PassLimits, VirtualSequence
from semblend.integration.worker.varlen_batch import VarlenBatch, uploaded


class NestedPass:
    """Runs the engine's model over virtual sequences of a scheduled batch.

    A sequence has one block, as long as any prompt: its request's row of the slot table.
    """

    def __init__(
        self,
        runner: Any,
        batch: Any,
        limits: PassLimits,
        ranks: MeetingRanks,
        attention: Sequence[Any] = (),
    ) -> None:
        """`attention` are the modules of the model's layers, which can be watched."""
        self._runner = runner
        self._batch = batch
        self._limits = limits
        self._ranks = ranks
        self._attention = attention

    def run(self, sequences: Sequence[VirtualSequence], *, watch: Watch | None = None) -> int:
        """Compute the K/V of all sequences; returns how many tokens that were.

        The last forward is watched.
        """
        forwards = self._limits.forwards(sequences)
        for forward in forwards:
            tokens = sum(map(len, forward))
            with self._watched(watch if forward is forwards[-1] else None, tokens):
                prepared = self._prepared(forward)
                self._ranks.meet()
                self._runner.forward(prepared)
        return sum(map(len, sequences))

    @contextmanager
    def _watched(self, watch: Watch | None, tokens: int) -> Iterator[None]:
        """Modules called one by one: a prefill graph that is replayed calls none."""
        if watch is None:
            yield
            return
        runner, seen = self._runner, list[int]()

        def see(layer: int, query: torch.Tensor) -> None:
            seen.append(layer)
            watch.see(layer, query[:tokens])  # the rest is padding

        graphs, runner.prefill_cuda_graph_runner = runner.prefill_cuda_graph_runner, None
        with ExitStack() as hooks:
            hooks.callback(setattr, runner, "prefill_cuda_graph_runner", graphs)
            for layer in watch.layers:
                handle = watch_queries(self._attention[layer], partial(see, layer), named="q")
                hooks.callback(handle.remove)
            yield
        if seen != list(watch.layers):
            raise ProbeUnavailableError("the model's attention layers were not seen to run")

    @fault_point(FaultPoint.NESTED_PASS)
    def _prepared(self, sequences: Sequence[VirtualSequence]) -> Any:
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch

        return ForwardBatch.init_new(
            self._batch_of(sequences),
            self._runner,
            capture_hidden_mode=CaptureHiddenMode.NULL,
            return_hidden_states_before_norm=False,
        )

    def _batch_of(self, sequences: Sequence[VirtualSequence]) -> Any:
        """An extend batch of virtual sequences over the rows of the scheduled one.

        A copy of it, so that fields unknown here keep the engine's own
        values; what depends on the sequences, on sampling or on logprobs is replaced.
        """
        batch = self._batch
        table = self._runner.req_to_token_pool.req_to_token
        # A prompt may have hundreds of holes: their slots are looked up at once.
        layout = VarlenBatch.of(sequences, table.stride(0))
        indices = layout.tables[layout.rows, 0].astype(np.int64)
        ends = layout.lengths.astype(np.int64)
        by_row = dict(zip(batch.req_pool_indices_cpu.tolist(), batch.reqs, strict=True))
        requests = [by_row[int(index)] for index in indices]
        lengths = [len(item) for item in sequences]
        numbers = np.concatenate([layout.tokens, layout.slots, ends, indices])
        there = uploaded(numbers, self._runner.device)
        sizes = [sum(lengths), sum(lengths), len(sequences), len(sequences)]
        input_ids, at, on_device, on_device_indices = torch.split(there, sizes)
        nested = copy(batch)
        replaced: dict[str, Any] = {
            "reqs": requests,
            "input_ids": input_ids,
            "prefill_input_ids_cpu": None,
            "req_pool_indices": on_device_indices.to(batch.req_pool_indices.dtype),
            "req_pool_indices_cpu": torch.from_numpy(indices),
            "prefix_lens": [item.start for item in sequences],
            "extend_lens": lengths,
            "extend_num_tokens": sum(lengths),
            "seq_lens": on_device,
            "seq_lens_cpu": torch.from_numpy(ends),
            "seq_lens_sum": int(ends.sum()),
            "orig_seq_lens": on_device.to(torch.int32),
            "out_cache_loc": table.view(-1)[at].to(torch.int64),
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


def attention_layers(model: Any, layers: int) -> list[Any]:
    """The model's attention modules in the order of the pool's layers.

    Raises
    ------
    UnsupportedModelError
        If the two are not as many, or numbered otherwise.
    """
    from sglang.srt.layers.radix_attention import RadixAttention

    found = [module for module in model.modules() if isinstance(module, RadixAttention)]
    found.sort(key=lambda module: module.layer_id)
    if [module.layer_id for module in found] != list(range(layers)):
        raise UnsupportedModelError(f"{len(found)} attention layers for {layers} of K/V")
    return found
