"""SEMBLEND_TRTLLM_CONFIG, checked once: every key, its default and what it means.

The processes TensorRT-LLM starts are given those variables of ours that begin with TRTLLM,
and no others for certain: :func:`forward` puts all of ours into one that does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from pydantic import Field

from semblend.core.errors import SettingsError
from semblend.integration.modes import Mode
from semblend.integration.options import VariableOptions

_PREFIX = "SEMBLEND_TRTLLM_"
VARIABLE = _PREFIX + "CONFIG"
FORWARDED = "TRTLLM_SEMBLEND_ENVIRONMENT"
"""A JSON object of SEMBLEND_* variables, for processes that were not given them."""


class ConnectorOptions(VariableOptions):
    """What one connector was asked to do."""

    ENGINE = "TensorRT-LLM"
    SOURCE = VARIABLE
    PREFIX = _PREFIX
    MODES = tuple(mode for mode in Mode if mode is not Mode.REQUEST_ONLY_EXPERIMENTAL)

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
    def environment(cls, environ: Mapping[str, str] | None) -> Mapping[str, str]:
        """The environment with what was forwarded; a variable that is set itself wins.

        Raises
        ------
        SettingsError
            If what was forwarded is not a JSON object of texts.
        """
        here = super().environment(environ)
        try:
            sent = json.loads(here.get(FORWARDED) or "{}")
            return {**{str(key): str(value) for key, value in sent.items()}, **here}
        except (AttributeError, ValueError) as error:
            raise SettingsError(f"{FORWARDED}: a JSON object expected: {error}") from error


def forward(environ: MutableMapping[str, str]) -> None:
    """Have the processes TensorRT-LLM starts from here know our variables."""
    ours = {key: value for key, value in environ.items() if key.startswith("SEMBLEND_")}
    environ[FORWARDED] = json.dumps(ours)
