"""The keys that every adapter accepts; each engine adds its own.

Settings that all engines share come from SEMBLEND_* variables; a key given to an adapter
overrides its variable. For engines that cannot pass keys to an adapter, the keys are in a
variable, as one JSON object (their launchers write it from flags).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from semblend.core.errors import SettingsError
from semblend.core.json_text import parse_json
from semblend.core.settings import EmbedderKind, Settings
from semblend.core.unheeded import unheeded
from semblend.integration.auditing.audit_stream import FILES, MAX_BYTES
from semblend.integration.modes import Mode
from semblend.integration.option_values import checked_options


class AdapterOptions(BaseModel):
    """What one adapter was asked to do."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    SOURCE: ClassVar[str]
    """Where the engine's users give the keys, for error messages."""
    MODES: ClassVar[tuple[Mode, ...]] = tuple(Mode)
    """The modes the engine has."""

    mode: Mode
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
            "Overrides SEMBLEND_RECOMPUTE_POLICY. Ignored in mode segmented, which uses the "
            "certificate's policy."
        ),
    )
    model_id: str | None = Field(
        None, min_length=1, description="Name of the model in namespaces; default: the engine's."
    )
    tenant: str | None = Field(
        None, min_length=1, description="Overrides SEMBLEND_DONOR_TENANT for this server."
    )
    audit_path: Path | None = Field(
        None, description="Append the audit stream (JSON lines) to this file."
    )
    audit_max_bytes: int = Field(
        MAX_BYTES,
        ge=0,
        description="Size at which the audit file is rotated to FILE.1; 0 never rotates.",
    )
    audit_files: int = Field(
        FILES, ge=1, description="Audit files to keep, including the current one."
    )
    unverified_architectures: bool = Field(
        False,
        description="Also try model architectures that have never been tested.",
    )

    @field_validator("mode")
    @classmethod
    def _is_served(cls, mode: Mode) -> Mode:
        if mode not in cls.MODES:
            raise ValueError(f"one of {', '.join(cls.MODES)} expected")
        return mode

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Check given keys.

        Raises
        ------
        SettingsError
            Naming the key and what it expects.
        """
        return checked_options(cls, values, source=cls.SOURCE)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Check a JSON object of keys; an empty text gives the defaults.

        Raises
        ------
        SettingsError
            Naming the key and what it expects.
        """
        try:
            values = parse_json(text) if text.strip() else {}
        except ValueError as error:
            raise SettingsError(f"{cls.SOURCE} is not JSON: {error}") from error
        if not isinstance(values, dict):
            kind = type(values).__name__
            raise SettingsError(f"{cls.SOURCE}: expected a JSON object, got {kind}")
        return cls.from_mapping(values)

    @property
    def audit(self) -> dict[str, Any]:
        """The audit stream's settings."""
        return {
            "path": self.audit_path,
            "max_bytes": self.audit_max_bytes,
            "files": self.audit_files,
        }

    def given(self) -> dict[str, Any]:
        """The keys that were given, as JSON values."""
        return self.model_dump(mode="json", exclude_unset=True)

    def overrides(self, **others: Any) -> dict[str, Any]:
        """The settings these keys and an engine's `others` override; None overrides nothing."""
        given = {
            "min_prompt_tokens": self.min_prompt_tokens,
            "min_reuse_ratio": self.min_reuse_ratio,
            "min_span_tokens": self.min_span_tokens,
            "recompute_policy": self.recompute_policy,
            "donor_tenant": self.tenant,
            "discovery_only": None if self.mode.loads else True,
            "allow_uncertified": True if self.mode.uncertified else None,
            **others,
        }
        return {name: value for name, value in given.items() if value is not None}


class VariableOptions(AdapterOptions):
    """Options in an environment variable, which is also their source."""

    ENGINE: ClassVar[str]
    """The engine's name, for error messages."""
    PREFIX: ClassVar[str]
    """Variables with this prefix belong to the adapter and are not settings."""

    register_donors: bool = Field(
        True, description="Whether prompts computed exactly become donors."
    )

    @classmethod
    def environment(cls, environ: Mapping[str, str] | None) -> Mapping[str, str]:
        """The environment to read; by default this process's."""
        return os.environ if environ is None else environ

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Options from the variable, or the defaults if it is not set.

        Raises
        ------
        SettingsError
            Naming the key and what it expects.
        """
        return cls.from_json(cls.environment(environ).get(cls.SOURCE, ""))

    def settings(self, environ: Mapping[str, str] | None = None) -> Settings:
        """SemBlend's settings under these options.

        No embedder runs in an engine's process, and regions end on block boundaries.
        """
        others = {
            name: value
            for name, value in self.environment(environ).items()
            if not name.startswith(self.PREFIX)
        }
        return Settings.from_env(
            others,
            **self.overrides(
                embedder=EmbedderKind.NONE, fuzzy_chunks=False, strict_prefix_boundary=True
            ),
        )

    def unheeded(self, environ: Mapping[str, str] | None = None) -> str:
        """Settings that were given but do nothing here; empty if none."""
        return unheeded(self.environment(environ), here=self.ENGINE)
