"""What certificates say about the model SGLang runs, and whether its policy can run here."""

from __future__ import annotations

from typing import Any

from semblend.core.outcomes import DeclineReason
from semblend.core.settings import Settings
from semblend.integration import certificates
from semblend.integration.probing import can_probe
from semblend.integration.sglang.log_lines import logger
from semblend.planning.certificates import Standing


def standing_of(runner: Any, settings: Settings) -> Standing:
    """The model's standing; whatever goes wrong is no certificate. Said once in the log."""
    config = runner.model_config
    standing = certificates.standing_of(
        str(config.model_path),
        config.hf_config,
        dtype=str(config.dtype).removeprefix("torch."),
        settings=settings,
        revision=getattr(config, "revision", None),
    )
    if standing.policy is not None and not can_probe(standing.policy):
        standing = Standing(
            reason=DeclineReason.NO_CERTIFICATE,
            detail=f"the certified policy {standing.policy} asks for a probe that is not made here",
        )
    if standing.policy is None:
        logger.warning(
            "SemBlend: %s: mode segmented runs discovery only: %s",
            config.model_path,
            standing.detail,
        )
    return standing
