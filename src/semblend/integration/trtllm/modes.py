"""The modes the connector runs in, and what each may do."""

from __future__ import annotations

from semblend.integration.modes import ReuseMode


class Mode(ReuseMode):
    """What the connector may supply to the engine."""

    DISCOVERY_ONLY = "discovery_only"
    """Find and report; nothing is captured or loaded."""
    EXACT_PREFIX = "exact_prefix"
    """Load K/V of an identical prefix that the engine's own cache has lost: exact."""
    SEGMENTED_EXPERIMENTAL = "segmented_experimental"
    """That, and spans anywhere for ladders, without a certificate; every report says so."""
    SEGMENTED = "segmented"
    """The same for ladders under the model's quality certificate."""
