"""SEMBLEND_SGLANG_CONFIG, checked once: every key, its default and what it means.

SGLang's processes are given their settings through the environment: this variable holds
one JSON object (the launcher writes it from its flags). Settings that all engines share
come from SEMBLEND_* variables as everywhere; a key given here wins over its variable.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Self

from pydantic import Field

from semblend.core.settings import EmbedderKind, Settings
from semblend.integration.option_values import options_table
from semblend.integration.options import AdapterOptions
from semblend.integration.sglang.modes import Mode

VARIABLE = "SEMBLEND_SGLANG_CONFIG"


class BackendOptions(AdapterOptions):
    """What one backend was asked to do."""

    SOURCE = VARIABLE

    mode: Mode = Field(
        Mode.SEGMENTED,
        description=(
            "discovery_only, segmented_experimental or segmented. Without a quality certificate "
            "segmented finds and reports, and loads nothing."
        ),
    )
    register_donors: bool = Field(
        True, description="Whether prompts computed exactly become donors."
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
    report: bool = Field(
        True, description="Whether responses say what was reused (meta_info.semblend)."
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Options from the variable, or the defaults without it.

        Raises
        ------
        SettingsError
            Naming the key and what would be right.
        """
        environ = os.environ if environ is None else environ
        return cls.from_json(environ.get(VARIABLE, ""))

    def settings(self, environ: Mapping[str, str] | None = None) -> Settings:
        """SemBlend's settings under these options.

        Nothing is embedded in the scheduler's process, and regions end on pages.
        """
        overrides = self.overrides(embedder=EmbedderKind.NONE, strict_prefix_boundary=True)
        source = os.environ if environ is None else environ
        return Settings.from_env(
            {name: value for name, value in source.items() if name != VARIABLE}, **overrides
        )


def options_table_markdown() -> str:
    """The table that docs/sglang.md holds; a test compares the two."""
    return options_table(BackendOptions)
