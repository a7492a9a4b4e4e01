"""Everything the scheduler's side needs to know about an engine, worked out once at start."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from semblend.core.chain import MEASURED_TURNS
from semblend.core.namespace import Namespace
from semblend.core.settings import Settings
from semblend.core.tokens import TokenArray
from semblend.integration.modes import CapturePolicy, Execution, Mode
from semblend.integration.probing import can_probe, needs_no_probe
from semblend.planning.boundaries import Boundaries
from semblend.planning.certificates import Standing
from semblend.planning.cost import CostModel

PLAN_SECONDS = 0.0015
Decoder = Callable[[TokenArray], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRules:
    """Which exactly computed prompts become donors."""

    policy: CapturePolicy = CapturePolicy.ALL
    sample_ratio: float = 1.0
    """Share of prompts kept when the policy is `sampled`."""
    queue: int = 8
    """Prompts that may wait to be copied; any more are not kept."""
    min_prompt_tokens: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSetup:
    """The scheduler side's view of one engine."""

    engine: str
    """Its name in audit records."""
    logger: logging.Logger
    """The log its users read."""
    settings: Settings
    namespace: Namespace
    mode: Mode
    execution: Execution = Execution.NESTED
    block_size: int
    ranks: int = 1
    hole_budget: int
    """Hole tokens one nested pass may compute."""
    step_tokens: int
    """Tokens one step of the engine computes at most."""
    plan_seconds: float = PLAN_SECONDS
    """Time a short step may spend on plans; see `PlanRation`."""
    cost: CostModel
    standing: Standing = field(default_factory=Standing)
    """What certificates say about the model; asked in mode `segmented` only."""
    boundaries: Boundaries | None = None
    capture: CaptureRules = field(default_factory=CaptureRules)
    chain_turns: int = MEASURED_TURNS
    """Requests of one conversation over approximate K/V, where the engine's blocks have names; a
    certificate may set a lower limit.
    """
    promotes: bool = True
    """Whether such conversations are computed exactly in idle steps."""
    audit: Mapping[str, Any] = field(default_factory=dict)
    """How the audit stream is kept: `AdapterOptions.audit`."""
    make_decoder: Callable[[], Decoder] | None = None
    """Turns tokens into text; set where donors are also looked up by meaning."""

    @property
    def certified(self) -> bool:
        """Whether a certificate covers what is loaded."""
        return self.standing.certificate is not None

    @property
    def may_load(self) -> bool:
        """Whether donor K/V is loaded at all."""
        return may_load(self.mode, self.settings, self.standing)

    @property
    def nested(self) -> bool:
        """Whether holes are computed in our own passes."""
        return self.mode.segmented and self.execution is Execution.NESTED

    @property
    def staged(self) -> bool:
        """Whether holes are computed by ordinary requests, rungs of a ladder."""
        return self.mode.segmented and self.execution is Execution.STAGED

    def can_run(self, policy: str) -> bool:
        """Whether a recompute policy gets the probe it asks for."""
        return needs_no_probe(policy) or (self.nested and can_probe(policy))


def may_load(mode: Mode, settings: Settings, standing: Standing) -> bool:
    """Whether donor K/V may be loaded: requested, and certified where required."""
    if settings.discovery_only or not mode.loads:
        return False
    return mode != Mode.SEGMENTED or standing.certificate is not None
