"""A TensorRT-LLM engine as a member of a fleet: its donors are announced."""

from __future__ import annotations

import logging

from semblend.core.errors import SemBlendError
from semblend.fleet.announcer import DonorAnnouncer
from semblend.fleet.membership import join
from semblend.integration.trtllm.scheduler_side import SchedulerSide

logger = logging.getLogger("semblend.trtllm")


def announce(side: SchedulerSide) -> DonorAnnouncer | None:
    """Announce donors, if SEMBLEND_NATS_URL says where; a fault there is none of the engine's."""
    if side.setup.unknown_parts:
        return None
    try:
        announcer = join(side.provider.pipeline, side.setup.settings, side.setup.namespace)
    except (SemBlendError, ImportError) as error:
        logger.error("SemBlend announces no donors: %s", error)
        return None
    if announcer is not None:
        side.announces(side.setup.settings.nats_subject)
    return announcer
