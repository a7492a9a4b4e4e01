"""SEMBLEND_TRTLLM_CONFIG, checked once: every key, its default and what it means.

TensorRT-LLM hands a connector its own arguments and nothing else, so ours come through
the environment: this variable holds one JSON object (the launcher writes it from its
flags). Settings that all engines share come from SEMBLEND_* variables as everywhere; a key
given here wins over its variable.

The processes TensorRT-LLM starts are given those variables of ours that begin with TRTLLM,
and no others for certain: :func:`forward` puts all of ours into one that does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from semblend.core.errors import SettingsError
from semblend.core.settings import EmbedderKind, Settings
from semblend.integration.option_values import checked_options, options_table

_PREFIX = "SEMBLEND_TRTLLM_"
VARIABLE = _PREFIX + "CONFIG"
FORWARDED = "TRTLLM_SEMBLEND_ENVIRONMENT"
"""A JSON object of SEMBLEND_* variables, for processes that were not given them."""


class Mode(StrEnum):
    """What the connector may supply to the engine."""

    DISCOVERY_ONLY = "discovery_only"
    """Find and report; nothing is captured or loaded."""
    EXACT_PREFIX = "exact_prefix"
    """Load K/V of an identical prefix that the engine's own cache has lost: exact."""
    SEGMENTED_EXPERIMENTAL = "segmented_experimental"
    """That, and spans anywhere for ladders, without a certificate; every report says so."""
    SEGMENTED = "segmented"
    """The same for ladders under the model's quality certificate."""

    @property
    def loads(self) -> bool:
        """Whether donor K/V is captured and loaded at all."""
        return self is not Mode.DISCOVERY_ONLY

    @property
    def segmented(self) -> bool:
        """Whether ladders are served."""
        return self in (Mode.SEGMENTED, Mode.SEGMENTED_EXPERIMENTAL)

    @property
    def uncertified(self) -> bool:
        """Whether approximate K/V may be loaded without a certificate."""
        return self is Mode.SEGMENTED_EXPERIMENTAL


class ConnectorOptions(BaseModel):
    """What one connector was asked to do."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    mode: Mode = Field(
        Mode.SEGMENTED,
        description=(
            "discovery_only, exact_prefix, segmented_experimental or segmented. Ladders need one "
            "of the last two; without a quality certificate segmented loads exact prefixes only."
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
        None, min_length=1, description="Name of the model in namespaces; by default the engine's."
    )
    model_revision: str | None = Field(
        None,
        min_length=1,
        description="Revision of the weights, where neither files nor the engine say.",
    )
    tenant: str | None = Field(
        None, min_length=1, description="Overrides SEMBLEND_DONOR_TENANT for this server."
    )
    register_donors: bool = Field(
        True, description="Whether prompts computed exactly become donors."
    )
    async_load_tokens: int | None = Field(
        None,
        ge=1,
        description=(
            "Loads of at least so many tokens park their request until they are done, instead of "
            "holding up the step; without it every load is made at once."
        ),
    )
    capture_queue: int = Field(
        8, ge=1, description="Prompts that may wait to be copied; more are not kept."
    )
    host_donor_bytes: int = Field(
        2 << 30, ge=1 << 16, description="Host memory for donor K/V, for each rank."
    )
    ladder_socket: Path | None = Field(
        None,
        description=(
            "Unix socket on which ladder clients of other processes ask for plans; made with mode "
            "0600. Without it only clients in the engine's own process can climb."
        ),
    )
    audit_path: Path | None = Field(
        None, description="File that the audit stream (JSON lines) is appended to."
    )
    unverified_architectures: bool = Field(
        False,
        description="Also try model architectures that no adapter was seen to work with.",
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Options from the variable, or the defaults without it.

        Raises
        ------
        SettingsError
            Naming the key and what would be right.
        """
        raw = received(environ).get(VARIABLE, "").strip()
        try:
            values = json.loads(raw) if raw else {}
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

        Nothing is embedded in the executor's process, and regions end on blocks.
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
        source = received(environ)
        others = {key: value for key, value in source.items() if not key.startswith(_PREFIX)}
        return Settings.from_env(others, **overrides)


def forward(environ: MutableMapping[str, str]) -> None:
    """Have the processes TensorRT-LLM starts from here know our variables."""
    ours = {key: value for key, value in environ.items() if key.startswith("SEMBLEND_")}
    environ[FORWARDED] = json.dumps(ours)


def received(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment with what was forwarded; a variable that is set itself wins.

    Raises
    ------
    SettingsError
        If what was forwarded is not a JSON object of texts.
    """
    here = dict(os.environ if environ is None else environ)
    try:
        sent = json.loads(here.get(FORWARDED) or "{}")
        return {**{str(key): str(value) for key, value in sent.items()}, **here}
    except (AttributeError, ValueError) as error:
        raise SettingsError(f"{FORWARDED}: a JSON object expected: {error}") from error


def options_table_markdown() -> str:
    """The table that docs/trtllm.md holds; a test compares the two."""
    return options_table(ConnectorOptions)
