"""What certificates say about the model an engine has loaded."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from semblend.core.namespace import NONE
from semblend.core.outcomes import DeclineReason
from semblend.core.settings import Settings
from semblend.integration.loaded_model.model_identity import content_fingerprint, weights_folder
from semblend.integration.modes import Mode
from semblend.integration.probing import UNPROBED
from semblend.kv.depth_drift import read_table
from semblend.planning.certificates import (
    Standing,
    certificate_folders,
    find_depth_table,
    look_up,
)
from semblend.planning.depth import shifts_depth

logger = logging.getLogger("semblend.certificates")


def standing_for(
    mode: Mode,
    name: str,
    hf_config: Any,
    *,
    dtype: str,
    settings: Settings,
    revision: str | None = None,
    quantization: str = NONE,
    kv_format: str = NONE,
    speculation: str = NONE,
    can_run: Callable[[str], bool] | None = None,
) -> Standing:
    """The valid certificate for exactly these weights, or why there is none. Never raises.

    Only mode `segmented` requires one; others have no more than `uncertified_standing`.

    `quantization` is what the engine does to the weights as it loads them: the fingerprint is
    that of their files, which state only how they are stored. `kv_format` is its K/V cache's own
    number format, where that is not the model's; `speculation` its drafter.

    A certificate holds for its policy: where the engine cannot run that (`can_run`), for none.
    """
    if mode != Mode.SEGMENTED:
        return uncertified_standing(
            name,
            hf_config,
            dtype=dtype,
            settings=settings,
            revision=revision,
            quantization=quantization,
            kv_format=kv_format,
        )
    try:
        fingerprint = content_fingerprint(weights_folder(name, revision), hf_config)
        if fingerprint is None:
            detail = f"no safetensors files of {name} were found to look up"
            return Standing(reason=DeclineReason.NO_CERTIFICATE, detail=detail)
        folders = certificate_folders(settings.certificate_dir)
        standing = look_up(
            fingerprint,
            dtype=dtype,
            quantization=quantization,
            kv_format=kv_format,
            speculation=speculation,
            folders=folders,
            key=settings.certificate_key,
        )
        if standing.policy is None or can_run is None or can_run(standing.policy):
            return standing
        detail = f"the certified policy {standing.policy} {UNPROBED}"
        return Standing(reason=DeclineReason.NO_CERTIFICATE, detail=detail)
    except Exception as error:
        logger.warning("could not look for certificates of %s", name, exc_info=True)
        return Standing(reason=DeclineReason.NO_CERTIFICATE, detail=f"not looked up: {error}")


def uncertified_standing(
    name: str,
    hf_config: Any,
    *,
    dtype: str,
    settings: Settings,
    revision: str | None = None,
    quantization: str = NONE,
    kv_format: str = NONE,
) -> Standing:
    """For modes that need no certificate: the model's depth-drift table, if there is one and the
    configured policy uses it. Never raises."""
    try:
        if (quantization, kv_format) != (NONE, NONE) or not shifts_depth(settings.recompute_policy):
            return Standing()
        fingerprint = content_fingerprint(weights_folder(name, revision), hf_config)
        folders = certificate_folders(settings.certificate_dir)
        table = None if fingerprint is None else find_depth_table(fingerprint, dtype, folders)
        if table is not None:
            read_table(table)  # no certificate covers it, so check it for damage
        return Standing(depth_table=table)
    except Exception:
        logger.warning("no table of depth drift for %s", name, exc_info=True)
        return Standing()
