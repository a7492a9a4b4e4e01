"""Finding the quality certificate that lets mode `segmented` load approximate K/V."""

from __future__ import annotations

import importlib
import logging
from typing import Any

logger = logging.getLogger("vllm.semblend")

_MODULE = "semblend.planning.certificates"


def find_certificate(model_fingerprint: str) -> Any | None:
    """The model's certificate, or None; a store that cannot be read is none."""
    try:
        module = importlib.import_module(_MODULE)
    except ModuleNotFoundError as error:
        if error.name != _MODULE:
            raise
        return None
    try:
        return module.find_certificate(model_fingerprint)
    except Exception as error:
        logger.warning("SemBlend could not read certificates: %s", error)
        return None
