"""The parts of a scheduler side, for code that works alongside it."""

from __future__ import annotations

from dataclasses import dataclass

from semblend.integration.auditing.audit_stream import AuditStream
from semblend.integration.scheduler.engine_planner import EnginePlanner
from semblend.integration.scheduler.prefill_clock import PrefillClock
from semblend.integration.scheduler.setup import SchedulerSetup
from semblend.integration.stats import Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerParts:
    """The parts for one engine."""

    setup: SchedulerSetup
    planner: EnginePlanner
    audit: AuditStream
    stats: Stats
    clock: PrefillClock
