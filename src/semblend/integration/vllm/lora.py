"""vLLM's LoRA adapters in nested passes.

vLLM keeps one mapping of tokens to adapters and sets it for the step's own batch before it
calls the connector. A pass under that mapping would compute hole tokens with another
request's adapter, or read past the mapping's end. So a pass sets a mapping of its own, for the base
model or for one adapter, and restores the step's afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from semblend.core.errors import DonorError
from semblend.integration.lora_adapter import LoraAdapter
from semblend.integration.worker.adapter_weights import AdapterWeights


class Adapters:
    """The adapters of one runner."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._weights = AdapterWeights(_tensors)

    @property
    def enabled(self) -> bool:
        """Whether the engine has adapters at all."""
        return getattr(self._runner, "lora_config", None) is not None

    @property
    def _manager(self) -> Any:
        return self._runner.lora_manager._adapter_manager

    @contextmanager
    def mapped(
        self, adapter: LoraAdapter | None, *, tokens: int, rows: int, alone: bool
    ) -> Iterator[None]:
        """Run `tokens` tokens with an adapter or without any; restore the step's own mapping.

        Parameters
        ----------
        rows
            Hidden states whose logits are requested inside; vLLM maps these separately.
        alone
            Whether no step is under way that needs its own adapters.
        """
        self.prepare(adapter, alone=alone)
        if not self.enabled:
            yield
            return
        manager = self._manager
        outer = manager._last_mapping
        number = 0 if adapter is None else adapter.number
        self._runner._set_active_loras((number,) * rows, (number,) * tokens, set())
        try:
            yield
        finally:
            # In a step without a forward this may be an old mapping, with adapters unloaded since.
            # Nobody needs it: the next forward sets its own.
            if outer is not None and _numbers(outer) <= set(manager.lora_index_to_id):
                manager.set_adapter_mapping(outer)

    def prepare(self, adapter: LoraAdapter | None, *, alone: bool) -> None:
        """Put an adapter where the kernels read it, without displacing the step's own.

        Raises
        ------
        DonorError
            If there is no room beside the step's adapters, or the weights are not what they were.
        """
        if adapter is None:
            return
        if not self.enabled:
            raise DonorError("the engine has no adapters")
        from vllm.lora.request import LoRARequest

        if not alone:
            self._protect(adapter.number)
        self._runner.lora_manager.add_adapter(
            LoRARequest(
                lora_name=adapter.name,
                lora_int_id=adapter.number,
                lora_path=adapter.path,
                **({"is_3d_lora_weight": True} if adapter.fused_experts else {}),
            )
        )
        if self.changed():
            raise DonorError("an adapter's weights changed")

    def changed(self) -> bool:
        """Whether some adapter has come back with other weights than it had."""
        return self.enabled and self._weights.changed(self._manager.list_adapters())

    def _protect(self, wanted: int) -> None:
        """Make the step's adapters the last to be displaced: its logits are still to come."""
        manager = self._manager
        mapping = manager._last_mapping
        used = set() if mapping is None else _numbers(mapping) & set(manager.lora_index_to_id)
        if len(used - {wanted}) >= manager.lora_slots:
            raise DonorError("the step's own adapters fill --max-loras")
        for number in used:
            manager.get_adapter(number)
            manager.activate_adapter(number)


def _numbers(mapping: Any) -> set[int]:
    """The adapters a mapping names."""
    return {number for number in {*mapping.index_mapping, *mapping.prompt_mapping} if number > 0}


def _tensors(weights: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """All numbers of a LoRAModel, named."""
    for name, layer in weights.loras.items():
        for part in ("lora_a", "lora_b"):
            held = getattr(layer, part)
            for index, tensor in enumerate(held if isinstance(held, list) else [held]):
                if tensor is not None:
                    yield f"{name}.{part}.{index}:{layer.scaling}", tensor
