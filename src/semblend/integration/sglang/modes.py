"""The modes the backend runs in, and what each may do."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """What the backend may supply to the engine.

    SGLang's own radix tree serves exact prefixes; there is no mode for them.
    """

    DISCOVERY_ONLY = "discovery_only"
    """Find and report; nothing is loaded."""
    SEGMENTED_EXPERIMENTAL = "segmented_experimental"
    """Load spans anywhere, without a certificate; every response says so."""
    SEGMENTED = "segmented"
    """Load spans anywhere, under the model's quality certificate."""

    @property
    def loads(self) -> bool:
        """Whether donor K/V is loaded at all."""
        return self is not Mode.DISCOVERY_ONLY

    @property
    def uncertified(self) -> bool:
        """Whether approximate K/V may be loaded without a certificate."""
        return self is Mode.SEGMENTED_EXPERIMENTAL
