"""The LoRA mapping of a nested pass: the base model, whatever the surrounding step runs.

vLLM keeps one mapping of tokens to adapters and sets it for the step's own batch before it
calls the connector. A pass under that mapping would compute hole tokens with another
request's adapter, or read past the mapping's end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def base_model(runner: Any, *, tokens: int, rows: int) -> Iterator[None]:
    """Run `tokens` tokens without any adapter, then restore the step's own mapping.

    Does nothing if the engine has no LoRA.

    Parameters
    ----------
    rows
        Hidden states whose logits are requested inside; vLLM maps these separately.
    """
    if getattr(runner, "lora_config", None) is None:
        yield
        return
    adapters = runner.lora_manager._adapter_manager
    outer = adapters._last_mapping
    runner._set_active_loras((0,) * rows, (0,) * tokens, set())
    try:
        yield
    finally:
        # In a step without a forward this may be an old mapping, with adapters unloaded since.
        # Nobody needs it: the next forward sets its own.
        if outer is not None and _loaded(adapters, outer):
            adapters.set_adapter_mapping(outer)


def _loaded(adapters: Any, mapping: Any) -> bool:
    used = {adapter for adapter in {*mapping.index_mapping, *mapping.prompt_mapping} if adapter > 0}
    return used <= set(adapters.lora_index_to_id)
