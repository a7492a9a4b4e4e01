"""`kv_connector_extra_config`, checked once: every key, its default and its meaning.

Settings that all engines share come from SEMBLEND_* variables; a key given here overrides
its variable.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from semblend.core.chain import MEASURED_TURNS
from semblend.core.errors import SettingsError
from semblend.core.settings import EmbedderKind, Settings, variable
from semblend.core.unheeded import unheeded
from semblend.integration.modes import (
    CapturePolicy,
    Execution,
    Mode,
    Provider,
    ReuseRequests,
)
from semblend.integration.options import AdapterOptions


class ConnectorOptions(AdapterOptions):
    """What one connector was asked to do."""

    SOURCE = "kv_connector_extra_config"

    mode: Mode = Field(
        Mode.DISCOVERY_ONLY,
        description=(
            "discovery_only, exact_prefix, request_only_experimental, segmented_experimental "
            "or segmented."
        ),
    )
    execution: Execution = Field(
        Execution.NESTED,
        description="How segmented modes compute holes: nested (needs --worker-cls) or staged.",
    )
    provider: Provider = Field(
        Provider.LOCAL,
        description="local finds donors by tokens; semblend also reports donors by meaning.",
    )
    reuse: ReuseRequests = Field(
        ReuseRequests.ALL,
        description="Which requests may use donor K/V: all, or only those that opt_in.",
    )
    min_similarity: float | None = Field(
        None,
        ge=0.0,
        le=1.0,
        description="Overrides SEMBLEND_MIN_SIMILARITY, for provider semblend.",
    )
    embedder_type: EmbedderKind | None = Field(
        None, description="Overrides SEMBLEND_EMBEDDER, for provider semblend."
    )
    max_hole_tokens_per_step: int | None = Field(
        None,
        ge=1,
        description=(
            "Hole tokens computed in one nested pass. Default and maximum: max_num_batched_tokens."
        ),
    )
    load_threads: int | None = Field(
        None,
        ge=0,
        le=16,
        description=(
            "Threads that copy donor K/V beside the engine's steps; 0 copies between steps. "
            "Default: 1 on a GPU, 0 on a CPU."
        ),
    )
    capture: CapturePolicy = Field(
        CapturePolicy.ALL,
        description="Which prompts become donors: all, sampled, hinted or none.",
    )
    capture_sample_ratio: float = Field(
        0.1, ge=0.0, le=1.0, description="Share of prompts kept when capture is sampled."
    )
    capture_queue: int = Field(
        8, ge=1, description="Prompts that may wait to be copied; further ones are not kept."
    )
    chain_turns: int = Field(
        MEASURED_TURNS,
        ge=1,
        description=(
            "Requests of one conversation over approximate K/V, the first included; 1 continues "
            "none. A certificate may set a lower limit."
        ),
    )
    promote_chains: bool = Field(
        True,
        description=(
            "Whether conversations over approximate K/V that went on are computed exactly in idle "
            "steps."
        ),
    )
    host_donor_bytes: int | None = Field(
        None,
        ge=1 << 20,
        description=(
            "Host memory for donor K/V, per rank. Default: all ranks together use a quarter of the "
            "machine's memory, and at most half of what is free at start."
        ),
    )
    disk_donor_bytes: int = Field(
        0, ge=0, description="Disk space for donor K/V below that, per rank; 0 uses none."
    )
    donor_folder: Path | None = Field(
        None, description="Where donor K/V on disk goes; needed when disk_donor_bytes is not 0."
    )

    audit_prompts: bool = Field(
        False,
        description=(
            "Also write every prompt to the audit file, as token ids, for `semblend certify "
            "--from-audit`. It then holds what users wrote: have their consent."
        ),
    )

    @classmethod
    def from_extra_config(cls, values: Mapping[str, Any] | None) -> Self:
        """Check `kv_connector_extra_config`.

        Raises
        ------
        SettingsError
            Naming the key and what it expects.
        """
        options = cls.from_mapping(values or {})
        if options.disk_donor_bytes and options.donor_folder is None:
            raise SettingsError(f"{cls.SOURCE}: disk_donor_bytes needs donor_folder")
        return options

    @property
    def audit(self) -> dict[str, Any]:
        """How the audit stream is kept."""
        return {**super().audit, "prompts": self.audit_prompts}

    @property
    def nested(self) -> bool:
        """Whether we compute holes in our own passes, which needs our worker class."""
        return self.mode.segmented and self.execution is Execution.NESTED

    @property
    def staged(self) -> bool:
        """Whether ordinary requests compute the holes, as rungs of a ladder."""
        return self.mode.segmented and self.execution is Execution.STAGED

    def settings(self, environ: Mapping[str, str] | None = None) -> Settings:
        """SemBlend's settings under these options."""
        by_meaning = self.provider is Provider.SEMBLEND
        overrides = self.overrides(
            min_similarity=self.min_similarity,
            embedder=self.embedder_type if by_meaning else EmbedderKind.NONE,
            fuzzy_chunks=None if by_meaning else False,
        )
        environ = os.environ if environ is None else environ
        if self.nested and variable("strict_prefix_boundary") not in environ:
            # vLLM can continue from any token, as after every chunk of a prefill, and the block in
            # which a region ends is private. Rounding down would compute up to a block of tokens
            # that donors have. Staged ladders and exact prefixes need whole blocks.
            overrides["strict_prefix_boundary"] = False
        return Settings.from_env(environ, **overrides)

    def unheeded(self, environ: Mapping[str, str] | None = None) -> str:
        """Settings and keys that were given but do nothing under these options; empty if none."""
        if self.provider is Provider.SEMBLEND:
            return ""
        keys = ("min_similarity", "embedder_type")
        return unheeded(
            os.environ if environ is None else environ,
            here="vLLM with provider local",
            keys=[f"{self.SOURCE}.{key}" for key in keys if getattr(self, key) is not None],
        )
