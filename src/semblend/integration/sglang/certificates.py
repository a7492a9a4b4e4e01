"""What certificates say about the model SGLang runs, and whether its policy can run here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from semblend.core.outcomes import DeclineReason
from semblend.core.settings import Settings
from semblend.integration.sglang.log_lines import logger
from semblend.kv.fingerprint import weights_fingerprint
from semblend.planning.certificates import Standing, certificate_folders, look_up
from semblend.planning.policies.base import policy_from_spec


def standing_of(runner: Any, settings: Settings) -> Standing:
    """The model's standing; whatever goes wrong is no certificate. Said once in the log."""
    config = runner.model_config
    try:
        folder = _folder(str(config.model_path))
        standing = look_up(
            weights_fingerprint(runner.model, config.hf_config, folder),
            dtype=str(config.dtype).removeprefix("torch."),
            folders=certificate_folders(settings.certificate_dir),
        )
    except Exception as error:
        logger.warning("SemBlend could not look for certificates: %s", error, exc_info=True)
        standing = Standing(reason=DeclineReason.NO_CERTIFICATE, detail=str(error))
    if standing.policy is not None and policy_from_spec(standing.policy).dynamic:
        standing = Standing(
            reason=DeclineReason.NO_CERTIFICATE,
            detail=f"the certified policy {standing.policy} asks for a probe SGLang has not",
        )
    if standing.policy is None:
        logger.warning(
            "SemBlend: %s: mode segmented runs discovery only: %s",
            config.model_path,
            standing.detail,
        )
    return standing


def _folder(name: str) -> Path | None:
    """Where the weights of a folder or hub name lie on disk."""
    if Path(name).is_dir():
        return Path(name)
    from transformers.utils.hub import cached_file

    config = cached_file(name, "config.json", local_files_only=True)
    return None if config is None else Path(config).parent
