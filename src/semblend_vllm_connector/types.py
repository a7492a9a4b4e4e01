"""Old name of the values that providers and the connector share."""

from __future__ import annotations

from semblend.core.moved import moved

__getattr__ = moved(
    __name__, "semblend.core.plan", "semblend.core.outcomes", "semblend.integration.modes"
)
