"""The LoRA mapping of a nested pass: the base model, whatever the step around it runs.

vLLM keeps one mapping of tokens to adapters and sets it for the step's own batch before the
connector is called. A pass that ran under that mapping would compute hole tokens with another
request's adapter, or read past the mapping's end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def base_model(runner: Any, *, tokens: int, rows: int) -> Iterator[None]:
    """Run `tokens` tokens without any adapter; afterwards the step's own mapping is back.

    Does nothing where the engine has no LoRA.

    Parameters
    ----------
    rows
        Hidden states whose logits are asked for inside; vLLM maps these separately.
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
        # In a step without a forward it may be an old one, of adapters that were unloaded since:
        # nobody needs it, the next forward sets its own.
        if outer is not None and _loaded(adapters, outer):
            adapters.set_adapter_mapping(outer)


def _loaded(adapters: Any, mapping: Any) -> bool:
    used = {adapter for adapter in {*mapping.index_mapping, *mapping.prompt_mapping} if adapter > 0}
    return used <= set(adapters.lora_index_to_id)
