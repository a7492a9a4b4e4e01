"""vLLM's piecewise CUDA graphs, for a nested pass that runs beside no step.

A small pass takes longer to launch than to run; replayed from the graphs that vLLM recorded for its
own steps it does not. Graphs read vLLM's own input buffers and share memory with each other, so a
replay overwrites the hidden states of the last step that replayed one. They are used only
where no step is under way whose outputs somebody still reads.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import torch


class PiecewiseGraphs:
    """Which sizes were recorded, and the buffers they read."""

    def __init__(self, sizes: list[int], buffers: Any) -> None:
        self._sizes = sizes
        self._buffers = buffers

    @classmethod
    def of(cls, runner: Any, config: Any) -> PiecewiseGraphs | None:
        """The graphs of a started engine; None where they are missing or not understood.

        Only the V2 runner's buffers are known. Left out: LoRA, whose graphs depend on the
        adapters; quantised weights, whose scales could see padding; several data-parallel ranks,
        which agree on a size in every step; drafters, whose graphs are their own; models that
        also read images, which have other inputs.
        """
        from vllm.config.compilation import CUDAGraphMode

        manager = getattr(runner, "cudagraph_manager", None)
        buffers = getattr(runner, "input_buffers", None)
        if manager is None or not hasattr(buffers, "input_ids"):
            return None
        understood = (
            manager._graphs_captured
            and manager.cudagraph_mode.mixed_mode() == CUDAGraphMode.PIECEWISE
            and not manager.use_breakable_cg
            and getattr(runner, "lora_config", None) is None
            and config.quant_config is None
            and config.speculative_config is None
            and not getattr(runner, "supports_mm_inputs", False)
            and not config.model_config.uses_mrope
            and not config.model_config.enable_prompt_embeds
            and config.parallel_config.data_parallel_size == 1
            and config.parallel_config.pipeline_parallel_size == 1
        )
        sizes = sorted(config.compilation_config.cudagraph_capture_sizes or ())
        return cls(sizes, buffers) if understood and sizes else None

    def size_for(self, tokens: int) -> int | None:
        """The smallest recorded size that holds a pass; None if it is too large."""
        place = bisect_left(self._sizes, tokens)
        return self._sizes[place] if place < len(self._sizes) else None

    def inputs(
        self, tokens: torch.Tensor, positions: torch.Tensor, size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The buffers that graphs of a size read, holding these tokens and zeros after them."""
        ids, places = self._buffers.input_ids[:size], self._buffers.positions[:size]
        for buffer, values in ((ids, tokens), (places, positions)):
            buffer[: len(values)].copy_(values, non_blocking=True)
            buffer[len(values) :].zero_()
        padding = getattr(self._buffers, "is_padding", None)
        if padding is not None:  # experts pass over what the last step marked
            padding[: len(tokens)] = False
            padding[len(tokens) : size] = True
        return ids, places

    def context(self, size: int) -> dict[str, Any]:
        """What tells vLLM's compiled code to replay."""
        from vllm.config.compilation import CUDAGraphMode
        from vllm.forward_context import BatchDescriptor

        return {
            "cudagraph_runtime_mode": CUDAGraphMode.PIECEWISE,
            "batch_descriptor": BatchDescriptor(num_tokens=size),
        }
