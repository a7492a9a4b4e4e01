"""The modes the backend runs in, and what each may do."""

from __future__ import annotations

from semblend.integration.modes import ReuseMode


class Mode(ReuseMode):
    """What the backend may supply to the engine.

    SGLang's own radix tree serves exact prefixes; there is no mode for them.
    """

    DISCOVERY_ONLY = "discovery_only"
    """Find and report; nothing is loaded."""
    SEGMENTED_EXPERIMENTAL = "segmented_experimental"
    """Load spans anywhere, without a certificate; every response says so."""
    SEGMENTED = "segmented"
    """Load spans anywhere, under the model's quality certificate."""
