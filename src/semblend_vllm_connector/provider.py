"""Old name of donor discovery."""

from __future__ import annotations

from semblend.core.moved import moved

__getattr__ = moved(__name__, "semblend.integration.modes", "semblend.pipeline")
