"""A forward pass over all holes of all requests of a step, inside the connector.

Every hole [s, e) is a virtual sequence of a varlen batch: query tokens [s, e),
sequence length e, and its request's own row of the block table. Each layer writes the
K/V of all hole tokens before attention reads, so later holes see earlier holes and the
spans between them, and the backend's stock causal kernel computes it exactly. What is more
than one forward may hold is run in several, earlier holes first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from semblend.core.errors import CapacityError, UnsupportedModelError
from semblend.core.plan import Hole
from semblend.integration.vllm import lora
from semblend.integration.vllm.metadata import LoadCommand
from semblend.integration.vllm.paged_access import PagedAccess
from semblend.integration.vllm.pass_split import PassLimits, VirtualSequence


class NestedPass:
    """Runs the engine's own model over virtual sequences, with a metadata builder of its own.

    The runner's builder is never used: backends keep planned state and persistent buffers in
    it, and this step's outer metadata is already built. The model's compiled code is used
    once the engine serves: eagerly, its many small kernels take longer to launch than to run.
    """

    def __init__(self, runner: Any, vllm_config: Any) -> None:
        groups = [group for groups in runner.attn_groups for group in groups]
        if len(groups) != 1:
            raise UnsupportedModelError(f"{len(groups)} attention groups; one is supported")
        if getattr(groups[0], "kernel_block_size", None) is not None:  # since vLLM 0.32
            raise UnsupportedModelError("kernel blocks smaller than K/V cache blocks")
        self._runner = runner
        self._config = vllm_config
        self._device = runner.device
        group = dataclasses.replace(groups[0], metadata_builders=[])
        group.create_metadata_builders(vllm_config, self._device)
        self._builder = group.get_metadata_builder(0)
        self.layer_names: tuple[str, ...] = tuple(group.layer_names)
        self.limits = PassLimits.of(self._builder, vllm_config.scheduler_config)
        self._skip_compiled = True

    def use_compiled(self) -> None:
        """The engine has compiled its model, with shapes of its own choosing.

        Code that shards sequences over the ranks takes only multiples of their number, so it
        is left alone.
        """
        passes = getattr(self._config.compilation_config, "pass_config", None)
        self._skip_compiled = bool(getattr(passes, "enable_sp", False))

    @torch.inference_mode()
    def run(
        self,
        sequences: Sequence[VirtualSequence],
        *,
        around_last: AbstractContextManager[Any] | None = None,
    ) -> int:
        """Compute the K/V of all sequences' query tokens; returns how many there were.

        Parameters
        ----------
        sequences
            Those over the same blocks in the order of their positions.
        around_last
            Entered around the last forward only, which has the last sequence's last tokens.
        """
        forwards = self.limits.forwards(sequences)
        for forward in forwards:
            last = forward is forwards[-1]
            with around_last if last and around_last is not None else nullcontext():
                self._forward(forward)
        return sum(len(sequence) for sequence in sequences)

    @torch.inference_mode()
    def logits(self, sequence: VirtualSequence, *, last: int) -> torch.Tensor | None:
        """Compute a sequence; log-probabilities behind its last tokens, [last, vocabulary].

        On the host, float32. None if none are asked for, or on a rank that gathers none.
        """
        *earlier, final = self.limits.forwards([sequence])
        for forward in earlier:
            self._forward(forward)
        hidden = self._forward(final)
        if not last:
            return None
        if len(hidden) < last:
            raise CapacityError(f"{last} tokens compared, one forward holds {len(hidden)}")
        with lora.base_model(self._runner, tokens=len(hidden), rows=last):
            logits = self._runner.get_model().compute_logits(hidden[-last:])
        return None if logits is None else logits.float().log_softmax(-1).cpu()

    def _forward(self, sequences: Sequence[VirtualSequence]) -> torch.Tensor:
        """Hidden states of all query tokens, [tokens, hidden]."""
        from vllm.forward_context import set_forward_context

        tokens = self._joined([item.tokens for item in sequences])
        positions = self._joined([item.positions for item in sequences])
        slots = self._joined([item.slots for item in sequences])
        common = self._common_metadata(sequences, slots, positions)
        metadata = self._builder.build(common_prefix_len=0, common_attn_metadata=common)
        count = int(tokens.numel())
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

    def _joined(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat(tuple(parts)).to(self._device)

    def _common_metadata(
        self, sequences: Sequence[VirtualSequence], slots: torch.Tensor, positions: torch.Tensor
    ) -> Any:
        from vllm.v1.attention.backend import CommonAttentionMetadata

        queries = [len(item) for item in sequences]
        starts = torch.tensor([0, *queries]).cumsum(0).to(torch.int32)
        lengths = torch.tensor([item.length for item in sequences], dtype=torch.int32)
        width = max(len(item.block_ids) for item in sequences)
        table = torch.zeros(len(sequences), width, dtype=torch.int32)
        for row, item in enumerate(sequences):
            table[row, : len(item.block_ids)] = torch.tensor(item.block_ids, dtype=torch.int32)
        return CommonAttentionMetadata(
            query_start_loc=starts.to(self._device),
            query_start_loc_cpu=starts,
            seq_lens=lengths.to(self._device),
            num_reqs=len(sequences),
            num_actual_tokens=int(starts[-1]),
            max_query_len=max(queries),
            max_seq_len=int(lengths.max()),
            block_table_tensor=table.to(self._device),
            slot_mapping=slots,
            causal=True,
            positions=positions,
            is_prefilling=torch.ones(len(sequences), dtype=torch.bool),
            seq_lens_cpu_upper_bound=lengths,
        )


def sequence_of(command: LoadCommand, hole: Hole, access: PagedAccess) -> VirtualSequence:
    """One hole of a load as a virtual sequence over the request's own blocks."""
    return VirtualSequence(
        tokens=torch.from_numpy(command.tokens)[hole.start : hole.end],
        positions=torch.arange(hole.start, hole.end),
        slots=access.slots(command.block_ids, hole.start, hole.end),
        block_ids=command.block_ids,
        length=hole.end,
    )


def hole_sequences(command: LoadCommand, access: PagedAccess) -> list[VirtualSequence]:
    """All holes of a load."""
    return [sequence_of(command, hole, access) for hole in command.holes]
