"""SEMBLEND_SGLANG_CONFIG, checked once: every key, its default and what it means.

SGLang's processes are given their settings through the environment: this variable holds
one JSON object (the launcher writes it from its flags). Settings that all engines share
come from SEMBLEND_* variables as everywhere; a key given here wins over its variable.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from semblend.core.errors import SettingsError
from semblend.core.json_text import parse_json
from semblend.core.settings import EmbedderKind, Settings
from semblend.integration.option_values import checked_options, options_table
from semblend.integration.sglang.modes import Mode

VARIABLE = "SEMBLEND_SGLANG_CONFIG"


class BackendOptions(BaseModel):
    """What one backend was asked to do."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    mode: Mode = Field(
        Mode.SEGMENTED,
        description=(
            "discovery_only, segmented_experimental or segmented. Without a quality certificate "
            "segmented finds and reports, and loads nothing."
        ),
    )
    min_prompt_tokens: int = Field(
        256, ge=2, description="Shorter prompts are neither looked up nor kept as donors."
    )
    min_reuse_ratio: float | None = Field(
        None, ge=0.0, le=1.0, description="Overrides SEMBLEND_MIN_REUSE_RATIO."
    )
    min_span_tokens: int | None = Field(
        None, ge=1, description="Overrides SEMBLEND_MIN_SPAN_TOKENS."
    )
    recompute_policy: str | None = Field(
        None,
        description=(
            "Overrides SEMBLEND_RECOMPUTE_POLICY. In mode segmented the certificate's policy is "
            "used and this is ignored."
        ),
    )
    model_id: str | None = Field(
        None, min_length=1, description="Name of the model in namespaces; by default SGLang's."
    )
    tenant: str | None = Field(
        None, min_length=1, description="Overrides SEMBLEND_DONOR_TENANT for this server."
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
    audit_path: Path | None = Field(
        None, description="File that the audit stream (JSON lines) is appended to."
    )
    unverified_architectures: bool = Field(
        False,
        description=(
            "Also try model architectures that this adapter was never seen to work with; the "
            "start-up self-test still applies."
        ),
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Options from the variable, or the defaults without it.

        Raises
        ------
        SettingsError
            Naming the key and what would be right.
        """
        raw = (os.environ if environ is None else environ).get(VARIABLE, "").strip()
        try:
            values = parse_json(raw) if raw else {}
        except ValueError as error:
            raise SettingsError(f"{VARIABLE} is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise SettingsError(f"{VARIABLE}: a JSON object expected, got {type(values).__name__}")
        return cls.from_mapping(values)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Check given keys.

        Raises
        ------
        SettingsError
            Naming the key and what would be right.
        """
        return checked_options(cls, values, source=VARIABLE)

    def settings(self, environ: Mapping[str, str] | None = None) -> Settings:
        """SemBlend's settings under these options.

        Nothing is embedded in the scheduler's process, and regions end on pages.
        """
        given = {
            "min_prompt_tokens": self.min_prompt_tokens,
            "min_reuse_ratio": self.min_reuse_ratio,
            "min_span_tokens": self.min_span_tokens,
            "recompute_policy": self.recompute_policy,
            "donor_tenant": self.tenant,
            "embedder": EmbedderKind.NONE,
            "strict_prefix_boundary": True,
        }
        overrides = {name: value for name, value in given.items() if value is not None}
        if self.mode is Mode.DISCOVERY_ONLY:
            overrides["discovery_only"] = True
        if self.mode.uncertified:
            overrides["allow_uncertified"] = True
        source = os.environ if environ is None else environ
        return Settings.from_env(
            {name: value for name, value in source.items() if name != VARIABLE}, **overrides
        )


def options_table_markdown() -> str:
    """The table that docs/sglang.md holds; a test compares the two."""
    return options_table(BackendOptions)
