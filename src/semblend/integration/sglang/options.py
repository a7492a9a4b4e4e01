"""SEMBLEND_SGLANG_CONFIG, checked once: every key, its default and what it means."""

from __future__ import annotations

from pydantic import Field

from semblend.core.chain import MEASURED_TURNS
from semblend.integration.modes import Mode
from semblend.integration.options import VariableOptions

VARIABLE = "SEMBLEND_SGLANG_CONFIG"


class BackendOptions(VariableOptions):
    """What one backend was asked to do."""

    ENGINE = "SGLang"
    SOURCE = PREFIX = VARIABLE
    MODES = (Mode.DISCOVERY_ONLY, Mode.SEGMENTED_EXPERIMENTAL, Mode.SEGMENTED)
    """SGLang's own radix tree serves exact prefixes; there is no mode for them."""

    mode: Mode = Field(
        Mode.SEGMENTED,
        description=(
            "discovery_only, segmented_experimental or segmented. Without a quality certificate "
            "segmented finds and reports, and loads nothing."
        ),
    )
    max_hole_tokens_per_step: int | None = Field(
        None,
        ge=1,
        description=(
            "Hole tokens computed before one forward of the engine; by default the engine's "
            "chunked_prefill_size, or 8192 where it has none."
        ),
    )
    failures_before_off: int = Field(
        3,
        ge=1,
        description="Failed loads or passes in a row after which nothing is loaded any more.",
    )
    chain_turns: int = Field(
        MEASURED_TURNS,
        ge=1,
        description=(
            "Requests of one conversation over approximate K/V, the first included; 1 continues "
            "none. A certificate may set a lower limit."
        ),
    )
    report: bool = Field(
        True, description="Whether responses say what was reused (meta_info.semblend)."
    )
