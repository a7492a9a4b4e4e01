"""The keys that every adapter takes; each engine adds its own.

Settings that all engines share come from SEMBLEND_* variables as everywhere; a key given
to an adapter wins over its variable. Engines that hand an adapter no keys of its own have them
in a variable, as one JSON object (their launchers write it from flags).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field

from semblend.core.errors import SettingsError
from semblend.core.json_text import parse_json
from semblend.core.settings import EmbedderKind, Settings
from semblend.core.unheeded import unheeded
from semblend.integration.audit import FILES, MAX_BYTES
from semblend.integration.modes import ReuseMode
from semblend.integration.option_values import checked_options


class AdapterOptions(BaseModel):
    """What one adapter was asked to do."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    SOURCE: ClassVar[str]
    """Where an engine's users give the keys, for messages."""

    mode: ReuseMode
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
        None, min_length=1, description="Name of the model in namespaces; by default the engine's."
    )
    tenant: str | None = Field(
        None, min_length=1, description="Overrides SEMBLEND_DONOR_TENANT for this server."
    )
    audit_path: Path | None = Field(
        None, description="File that the audit stream (JSON lines) is appended to."
    )
    audit_max_bytes: int = Field(
        MAX_BYTES,
        ge=0,
        description="Size at which the audit file is put aside as FILE.1; 0 lets it grow.",
    )
    audit_files: int = Field(
        FILES, ge=1, description="Audit files kept in all, the one being written included."
    )
    unverified_architectures: bool = Field(
        False,
        description="Also try model architectures that were never seen to work.",
    )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Check given keys.

        Raises
        ------
        SettingsError
            Naming the key and what would be right.
        """
        return checked_options(cls, values, source=cls.SOURCE)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Check a JSON object of keys; the defaults for an empty text.

        Raises
        ------
        SettingsError
            Naming the key and what would be right.
        """
        try:
            values = parse_json(text) if text.strip() else {}
        except ValueError as error:
            raise SettingsError(f"{cls.SOURCE} is not JSON: {error}") from error
        if not isinstance(values, dict):
            kind = type(values).__name__
            raise SettingsError(f"{cls.SOURCE}: a JSON object expected, got {kind}")
        return cls.from_mapping(values)

    @property
    def audit(self) -> dict[str, Any]:
        """How the audit stream is kept."""
        return {
            "path": self.audit_path,
            "max_bytes": self.audit_max_bytes,
            "files": self.audit_files,
        }

    def given(self) -> dict[str, Any]:
        """The keys that were given, as JSON has them."""
        return self.model_dump(mode="json", exclude_unset=True)

    def overrides(self, **others: Any) -> dict[str, Any]:
        """Settings by these keys, and by `others` that an engine adds; None overrides nothing."""
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
    """Options in a variable, whose name is their source."""

    ENGINE: ClassVar[str]
    """The engine's name, for messages."""
    PREFIX: ClassVar[str]
    """Variables that begin so are the adapter's own, and no settings."""

    register_donors: bool = Field(
        True, description="Whether prompts computed exactly become donors."
    )

    @classmethod
    def environment(cls, environ: Mapping[str, str] | None) -> Mapping[str, str]:
        """All variables there are; those of this process by default."""
        return os.environ if environ is None else environ

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Options from the variable, or the defaults without it.

        Raises
        ------
        SettingsError
            Naming the key and what would be right.
        """
        return cls.from_json(cls.environment(environ).get(cls.SOURCE, ""))

    def settings(self, environ: Mapping[str, str] | None = None) -> Settings:
        """SemBlend's settings under these options.

        Nothing is embedded in an engine's process, and regions end on blocks.
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
        """Which settings were given and do nothing here; empty if none."""
        return unheeded(self.environment(environ), here=self.ENGINE)
