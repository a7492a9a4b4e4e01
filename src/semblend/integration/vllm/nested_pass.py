"""One forward pass over all holes of all requests of a step, inside the connector.

Every hole [s, e) is a virtual sequence of a varlen batch: query tokens [s, e), sequence
length e, and its request's own row of the block table. Each layer writes the K/V of all hole
tokens before attention reads, so later holes see earlier holes and the spans between them,
and the backend's stock causal kernel computes it exactly. What exceeds one forward is split
into several, earlier holes first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from semblend.core.errors import CapacityError, UnsupportedModelError
from semblend.integration.lora_adapter import LoraAdapter
from semblend.integration.vllm.layer_queries import attending, queries_of
from semblend.integration.vllm.lora import Adapters
from semblend.integration.vllm.model_inputs import ModelInputs
from semblend.integration.vllm.piecewise_graphs import PiecewiseGraphs
from semblend.integration.vllm.speculation import DraftPass
from semblend.integration.worker.port import BeforeLayer, Watch
from semblend.integration.worker.sequences import PassLimits, VirtualSequence, adapter_of
from semblend.integration.worker.varlen_batch import VarlenBatch, following_tokens, uploaded

_NO_SLOT = -1
"""vLLM writes no K/V of tokens with this slot."""


class NestedPass:
    """Runs the engine's own model over virtual sequences, with a separate metadata builder.

    The runner's builder is never used: backends keep planned state and persistent buffers in
    it, and this step's outer metadata is already built. Once the engine serves, the model's
    compiled code is used: eagerly, its many small kernels take longer to launch than to run.
    """

    def __init__(
        self,
        runner: Any,
        vllm_config: Any,
        layers: Mapping[str, Any],
        *,
        draft: DraftPass | None = None,
    ) -> None:
        """Make metadata builders of our own.

        Parameters
        ----------
        layers
            The attention layers in order, those of a drafter last.
        draft
            Runs the drafter whose layers these are.
        """
        if len(runner.attn_groups) != 1:
            raise UnsupportedModelError(f"{len(runner.attn_groups)} K/V cache groups, not one")
        groups = [
            dataclasses.replace(group, metadata_builders=[]) for group in runner.attn_groups[0]
        ]
        if any(getattr(group, "kernel_block_size", None) is not None for group in groups):
            raise UnsupportedModelError("kernel blocks smaller than K/V cache blocks")
        self._runner = runner
        self._layers = tuple(layers.values())
        self._draft = draft
        self._adapters = Adapters(runner)
        self._config = vllm_config
        self._device = torch.device(runner.device)
        self._uploaded = partial(uploaded, device=self._device)
        self._inputs = ModelInputs(runner, vllm_config, self._device)
        self._block_size = int(vllm_config.cache_config.block_size)
        for group in groups:
            group.create_metadata_builders(vllm_config, self._device)
        self._builders = [
            (tuple(group.layer_names), group.get_metadata_builder(0)) for group in groups
        ]
        """Layers of one kind share metadata: with windows, there may be several kinds."""
        self.layer_names = tuple(layers)
        self.limits = limits_of(
            [builder for _, builder in self._builders], vllm_config.scheduler_config
        )
        self._skip_compiled = True
        self._graphs: PiecewiseGraphs | None = None
        self._is_serving = False
        self.replayed = 0

    def serving(self) -> None:
        """The engine has compiled its model, for shapes of its own choosing.

        Code that shards sequences over the ranks accepts only multiples of their number, so it
        is not used.
        """
        if self._is_serving:
            return
        self._is_serving = True
        passes = getattr(self._config.compilation_config, "pass_config", None)
        self._skip_compiled = bool(getattr(passes, "enable_sp", False))
        if not self._skip_compiled and self._device.type == "cuda":
            self._graphs = PiecewiseGraphs.of(self._runner, self._config)

    def prepare(self, adapter: LoraAdapter | None, *, alone: bool) -> None:
        """Make an adapter ready beside the engine's step, or raise."""
        self._adapters.prepare(adapter, alone=alone)

    def adapters_changed(self) -> bool:
        """Whether some adapter has other weights than it had."""
        return self._adapters.changed()

    @torch.inference_mode()
    def run(
        self,
        sequences: Sequence[VirtualSequence],
        *,
        watch: Watch | None = None,
        before_layer: BeforeLayer | None = None,
        alone: bool = False,
    ) -> int:
        """Compute the K/V of all sequences' query tokens; return how many there were.

        Sequences over the same blocks come in position order; the last forward is watched.
        """
        forwards = self.limits.forwards(sequences)
        for forward in forwards:
            watched = watch if forward is forwards[-1] else None
            with self._announced(before_layer), self._watched(watched, sum(map(len, forward))):
                self._forward(forward, alone=alone)
        return sum(len(sequence) for sequence in sequences)

    @torch.inference_mode()
    def logits(self, sequence: VirtualSequence, *, last: int) -> torch.Tensor | None:
        """Compute a sequence; return log-probabilities of its last tokens, [last, vocabulary].

        On the host, float32. None if none are requested, or on a rank that gathers none.
        """
        *earlier, final = self.limits.forwards([sequence])
        for forward in earlier:
            self._forward(forward)
        hidden = self._forward(final)
        if not last:
            return None
        if len(hidden) < last:
            raise CapacityError(f"{last} tokens to compare, but one forward holds {len(hidden)}")
        with self._adapters.mapped(sequence.adapter, tokens=len(hidden), rows=last, alone=False):
            logits = self._runner.get_model().compute_logits(hidden[-last:])
        return None if logits is None else logits.float().log_softmax(-1).cpu()

    @contextmanager
    def _watched(self, watch: Watch | None, tokens: int) -> Iterator[None]:
        if watch is None:
            yield
            return

        def see(layer: int, query: torch.Tensor) -> None:
            last = query[:tokens][-watch.last :]  # what comes after these tokens is padding
            watch.see(layer, queries_of(self._layers[layer], last))

        with ExitStack() as watchers:
            for number in watch.layers:
                after = partial(see, number)
                watchers.enter_context(attending(self._layers[number], after=after))
            yield

    @contextmanager
    def _announced(self, before_layer: BeforeLayer | None) -> Iterator[None]:
        """Announce every layer before its attention, or fail: it may have read too early."""
        if before_layer is None:
            yield
            return
        announced: set[int] = set()

        def announce(layer: int) -> None:
            before_layer(layer)
            announced.add(layer)

        with ExitStack() as layers:
            for number, layer in enumerate(self._layers):
                layers.enter_context(attending(layer, before=partial(announce, number)))
            yield
        if len(announced) < len(self._layers):
            raise UnsupportedModelError(
                f"{len(self._layers) - len(announced)} layers did not wait for their K/V"
            )

    def _forward(
        self, sequences: Sequence[VirtualSequence], *, alone: bool = False
    ) -> torch.Tensor:
        """Hidden states of all query tokens, [tokens, hidden]."""
        from vllm.forward_context import set_forward_context

        layout = VarlenBatch.of(sequences, self._block_size)
        tokens, positions = self._uploaded(layout.tokens), self._uploaded(layout.positions)
        slots = self._uploaded(layout.slots)
        common = self._common_metadata(layout, slots, positions)
        metadata: dict[str, Any] = {}
        for names, builder in self._builders:
            built = builder.build(common_prefix_len=0, common_attn_metadata=common)
            metadata |= dict.fromkeys(names, built)
        count = len(layout.tokens)
        size = self._graphs.size_for(count) if alone and self._graphs is not None else None
        how: dict[str, Any] = {"skip_compiled": self._skip_compiled}
        if size is not None and self._graphs is not None:
            how |= self._graphs.context(size)
            tokens, positions = self._graphs.inputs(tokens, positions, size)
            slots = torch.nn.functional.pad(slots, (0, size - count), value=_NO_SLOT)
        with (
            self._adapters.mapped(
                adapter_of(sequences), tokens=count, rows=len(sequences), alone=alone
            ),
            set_forward_context(
                metadata,
                self._config,
                num_tokens=size or count,
                slot_mapping=dict.fromkeys(self.layer_names, slots),
                **how,
            ),
        ):
            try:
                hidden: torch.Tensor = self._runner.get_model()(
                    **self._inputs.of(tokens, positions), intermediate_tensors=None
                )
            except Exception:
                if size is not None:
                    self._graphs = None  # this load fails; later ones do without
                raise
            self.replayed += size is not None
            if self._draft is not None:
                self._draft(self._uploaded(following_tokens(sequences)), positions, hidden)
        return hidden[:count]

    def _common_metadata(
        self, layout: VarlenBatch, slots: torch.Tensor, positions: torch.Tensor
    ) -> Any:
        from vllm.v1.attention.backend import CommonAttentionMetadata

        count = len(layout.lengths)
        rows = self._uploaded(layout.rows)
        return CommonAttentionMetadata(
            query_start_loc=self._uploaded(layout.starts),
            query_start_loc_cpu=torch.from_numpy(layout.starts),
            seq_lens=self._uploaded(layout.lengths),
            num_reqs=count,
            num_actual_tokens=len(layout.tokens),
            max_query_len=int(np.diff(layout.starts).max()),
            max_seq_len=int(layout.lengths.max()),
            block_table_tensor=self._uploaded(layout.tables).index_select(0, rows),
            slot_mapping=slots,
            causal=True,
            positions=positions,
            is_prefilling=torch.ones(count, dtype=torch.bool),
            seq_lens_cpu_upper_bound=torch.from_numpy(layout.lengths),
        )


def limits_of(builders: Sequence[Any], scheduler_config: Any) -> PassLimits:
    """What attention metadata builders and the engine's buffers have room for."""
    return PassLimits(
        sequences=min(_most_sequences(builder, scheduler_config) for builder in builders),
        tokens=int(scheduler_config.max_num_batched_tokens),
    )


def _most_sequences(builder: Any, scheduler_config: Any) -> int:
    planned = getattr(builder, "scheduler_metadata", None)
    if isinstance(planned, torch.Tensor):
        # FlashAttention 3: one counter, and four numbers per sequence, sequences rounded up to
        # four.
        return max(1, (int(planned.numel()) - 1) // 16 * 4)
    return int(scheduler_config.max_num_seqs)
