"""Tokens and positions as vLLM's own runners hand them to a model.

Compiled code accepts them in no other form: models that also read images are given embeddings,
and M-RoPE positions come in rows of a wider buffer.
"""

from __future__ import annotations

from typing import Any

import torch


class ModelInputs:
    """The inputs of nested passes, all of them text."""

    def __init__(self, runner: Any, vllm_config: Any, device: torch.device) -> None:
        config = vllm_config.model_config
        self._runner = runner
        self._embeds = bool(
            getattr(runner, "supports_mm_inputs", False) or config.enable_prompt_embeds
        )
        self._with_tokens = bool(getattr(config, "requires_raw_input_tokens", False))
        self._rows: torch.Tensor | None = None
        if config.uses_mrope:
            width = int(vllm_config.scheduler_config.max_num_batched_tokens)
            axes = int(getattr(config, "mrope_num_dims", 3))  # since vLLM 0.32
            self._rows = torch.zeros((axes, width + 1), dtype=torch.int64, device=device)

    def of(self, tokens: torch.Tensor, positions: torch.Tensor) -> dict[str, torch.Tensor | None]:
        """Keyword arguments for the model; `tokens` and `positions` are [tokens]."""
        embeddings = self._runner.get_model().embed_input_ids(tokens) if self._embeds else None
        if self._rows is not None:
            rows = self._rows[:, : len(positions)]
            positions = rows.copy_(positions.expand_as(rows))
        return {
            "input_ids": tokens if embeddings is None or self._with_tokens else None,
            "positions": positions,
            "inputs_embeds": embeddings,
        }
