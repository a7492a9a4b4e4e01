"""Which rotary rows vLLM uses where a length decides: dynamic NTK and longrope.

vLLM decides once, from the lengths it is started with, and not for each prompt. So K can be moved
within an engine, and between engines that decided alike.
"""

from __future__ import annotations

from typing import Any

from semblend.kv.rotary_config import ConfigReader


def length_class(model_config: Any) -> str:
    """All that the decision follows from, for the namespace; empty if no length decides."""
    text = model_config.hf_text_config
    reader = ConfigReader.of(text)
    if not reader.by_length:
        return ""
    trained = reader.original_max_positions
    rows = "long" if int(model_config.max_model_len) > trained else "short"
    return f";{rows} of {trained}, {reader.max_positions} positions"
