"""One forward pass over all holes of all requests of a step, inside the connector.

Every hole [s, e) is a virtual sequence of a varlen batch: query tokens [s, e), sequence
length e, and its request's own row of the block table. Each layer writes the K/V of all hole
tokens before attention reads, so later holes see earlier holes and the spans between them,
and the backend's stock causal kernel computes it exactly. What exceeds one forward is split
into several, earlier holes first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from semblend.core.errors import CapacityError, UnsupportedModelError
from semblend.integration.vllm import lora
from semblend.integration.worker.port import Watch
from semblend.integration.worker.sequences import PassLimits, VirtualSequence


class NestedPass:
    """Runs the engine's own model over virtual sequences, with a separate metadata builder.

    The runner's builder is never used: backends keep planned state and persistent buffers in
    it, and this step's outer metadata is already built. Once the engine serves, the model's
    compiled code is used: eagerly, its many small kernels take longer to launch than to run.
    """

    def __init__(self, runner: Any, vllm_config: Any, layers: Sequence[Any]) -> None:
        """`layers` are the model's attention layers, in order."""
        groups = [group for groups in runner.attn_groups for group in groups]
        if len(groups) != 1:
            raise UnsupportedModelError(f"{len(groups)} attention groups; one is supported")
        if getattr(groups[0], "kernel_block_size", None) is not None:  # since vLLM 0.32
            raise UnsupportedModelError("kernel blocks smaller than K/V cache blocks")
        self._runner = runner
        self._layers = layers
        self._config = vllm_config
        self._device = torch.device(runner.device)
        self._block_size = int(vllm_config.cache_config.block_size)
        group = dataclasses.replace(groups[0], metadata_builders=[])
        group.create_metadata_builders(vllm_config, self._device)
        self._builder = group.get_metadata_builder(0)
        self.layer_names: tuple[str, ...] = tuple(group.layer_names)
        self.limits = limits_of(self._builder, vllm_config.scheduler_config)
        self._skip_compiled = True

    def serving(self) -> None:
        """The engine has compiled its model, for shapes of its own choosing.

        Code that shards sequences over the ranks accepts only multiples of their number, so it
        is not used.
        """
        passes = getattr(self._config.compilation_config, "pass_config", None)
        self._skip_compiled = bool(getattr(passes, "enable_sp", False))

    @torch.inference_mode()
    def run(self, sequences: Sequence[VirtualSequence], *, watch: Watch | None = None) -> int:
        """Compute the K/V of all sequences' query tokens; return how many there were.

        Sequences over the same blocks come in position order; the last forward is watched.
        """
        forwards = self.limits.forwards(sequences)
        for forward in forwards:
            with self._watched(watch if forward is forwards[-1] else None):
                self._forward(forward)
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
        with lora.base_model(self._runner, tokens=len(hidden), rows=last):
            logits = self._runner.get_model().compute_logits(hidden[-last:])
        return None if logits is None else logits.float().log_softmax(-1).cpu()

    @contextmanager
    def _watched(self, watch: Watch | None) -> Iterator[None]:
        with ExitStack() as watchers:
            if watch is not None:
                for layer in watch.layers:
                    see = partial(watch.see, layer)
                    watchers.enter_context(_watched(self._layers[layer].impl, see))
            yield

    def _forward(self, sequences: Sequence[VirtualSequence]) -> torch.Tensor:
        """Hidden states of all query tokens, [tokens, hidden]."""
        from vllm.forward_context import set_forward_context

        layout = _Layout.of(sequences, self._block_size)
        tokens, positions = self._uploaded(layout.tokens), self._uploaded(layout.positions)
        slots = self._uploaded(layout.slots)
        common = self._common_metadata(layout, slots, positions)
        metadata = self._builder.build(common_prefix_len=0, common_attn_metadata=common)
        count = len(layout.tokens)
        with (
            lora.base_model(self._runner, tokens=count, rows=len(sequences)),
            set_forward_context(
                dict.fromkeys(self.layer_names, metadata),
                self._config,
                num_tokens=count,
                slot_mapping=dict.fromkeys(self.layer_names, slots),
                skip_compiled=self._skip_compiled,
            ),
        ):
            hidden: torch.Tensor = self._runner.get_model()(
                input_ids=tokens,
                positions=positions,
                intermediate_tensors=None,
                inputs_embeds=None,
            )
        return hidden

    def _uploaded(self, values: npt.NDArray[Any]) -> torch.Tensor:
        """Copy to the device without waiting for its current work."""
        tensor = torch.from_numpy(values)
        if self._device.type != "cuda":
            return tensor
        return tensor.pin_memory().to(self._device, non_blocking=True)

    def _common_metadata(
        self, layout: _Layout, slots: torch.Tensor, positions: torch.Tensor
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Layout:
    """A varlen batch on the host: the query tokens of all sequences, concatenated."""

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    """Where the tokens' K/V is written."""
    starts: npt.NDArray[np.int32]
    """Where each sequence's tokens begin, and the end; [sequences + 1]."""
    lengths: npt.NDArray[np.int32]
    """Tokens attention sees, [sequences]."""
    tables: npt.NDArray[np.int32]
    """Each prompt's blocks once, [prompts, most blocks]."""
    rows: npt.NDArray[np.int64]
    """Index of each sequence's table."""

    @classmethod
    def of(cls, sequences: Sequence[VirtualSequence], block_size: int) -> _Layout:
        counts = np.array([len(item) for item in sequences])
        starts = np.concatenate(([0], counts.cumsum())).astype(np.int32)
        # Counted from the prompt's start: an arange with a jump at each sequence.
        jumps = np.array([item.start for item in sequences]) - starts[:-1]
        places = np.arange(starts[-1], dtype=np.int64) + np.repeat(jumps, counts)
        prompts = {id(item.blocks): item.blocks for item in sequences}
        row_of = {key: row for row, key in enumerate(prompts)}
        tables = np.zeros((len(prompts), max(map(len, prompts.values()))), dtype=np.int32)
        for row, blocks in enumerate(prompts.values()):
            tables[row, : len(blocks)] = blocks
        rows = np.array([row_of[id(item.blocks)] for item in sequences])
        block, offset = places // block_size, places % block_size
        return cls(
            tokens=np.concatenate([item.tokens[item.start : item.end] for item in sequences]),
            positions=places + np.repeat([item.shift for item in sequences], counts),
            slots=tables[np.repeat(rows, counts), block].astype(np.int64) * block_size + offset,
            starts=starts,
            lengths=np.array([item.end for item in sequences], dtype=np.int32),
            tables=tables,
            rows=rows,
        )


@contextmanager
def _watched(impl: Any, watch: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Call `watch` with an attention layer's queries once attention has used them.

    Not a hook on the module: compiled code calls the layer's implementation directly.
    """
    attend = impl.forward

    def forward(layer: Any, query: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        result = attend(layer, query, *arguments, **options)
        watch(query)
        return result

    impl.forward = forward
    try:
        yield
    finally:
        del impl.forward


def limits_of(builder: Any, scheduler_config: Any) -> PassLimits:
    """What an attention metadata builder and the engine's buffers have room for."""
    return PassLimits(
        sequences=_most_sequences(builder, scheduler_config),
        tokens=int(scheduler_config.max_num_batched_tokens),
    )


def _most_sequences(builder: Any, scheduler_config: Any) -> int:
    planned = getattr(builder, "scheduler_metadata", None)
    if isinstance(planned, torch.Tensor):
        # FlashAttention 3: one counter, and four numbers per sequence, sequences rounded up to
        # four.
        return max(1, (int(planned.numel()) - 1) // 16 * 4)
    return int(scheduler_config.max_num_seqs)
