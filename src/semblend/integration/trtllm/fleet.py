"""A TensorRT-LLM engine as a member of a fleet: its donors are announced."""

from __future__ import annotations

import logging

from semblend.core.errors import SemBlendError
from semblend.fleet.announcer import DonorAnnouncer
from semblend.fleet.membership import join
from semblend.integration.trtllm.setup import TrtSetup
from semblend.pipeline import SemBlendPipeline

logger = logging.getLogger("semblend.trtllm")


def announce(pipeline: SemBlendPipeline, setup: TrtSetup) -> DonorAnnouncer | None:
    """Announce donors, if SEMBLEND_NATS_URL says where; a fault there is none of the engine's."""
    if setup.unknown_parts:
        return None
    try:
        return join(pipeline, setup.scheduler.settings, setup.scheduler.namespace)
    except (SemBlendError, ImportError) as error:
        logger.error("SemBlend announces no donors: %s", error)
        return None
