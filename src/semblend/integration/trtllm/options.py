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
from pathlib import Path
from typing import Self

from pydantic import Field

from semblend.core.errors import SettingsError
from semblend.core.settings import EmbedderKind, Settings
from semblend.integration.option_values import options_table
from semblend.integration.options import AdapterOptions
from semblend.integration.trtllm.modes import Mode

_PREFIX = "SEMBLEND_TRTLLM_"
VARIABLE = _PREFIX + "CONFIG"
FORWARDED = "TRTLLM_SEMBLEND_ENVIRONMENT"
"""A JSON object of SEMBLEND_* variables, for processes that were not given them."""


class ConnectorOptions(AdapterOptions):
    """What one connector was asked to do."""

    SOURCE = VARIABLE

    mode: Mode = Field(
        Mode.SEGMENTED,
        description=(
            "discovery_only, exact_prefix, segmented_experimental or segmented. Ladders need one "
            "of the last two; without a quality certificate segmented loads exact prefixes only."
        ),
    )
    model_revision: str | None = Field(
        None,
        min_length=1,
        description="Revision of the weights, where neither files nor the engine say.",
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

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Options from the variable, or the defaults without it.

        Raises
        ------
        SettingsError
            Naming the key and what would be right.
        """
        return cls.from_json(received(environ).get(VARIABLE, ""))

    def settings(self, environ: Mapping[str, str] | None = None) -> Settings:
        """SemBlend's settings under these options.

        Nothing is embedded in the executor's process, and regions end on blocks.
        """
        overrides = self.overrides(embedder=EmbedderKind.NONE, strict_prefix_boundary=True)
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
