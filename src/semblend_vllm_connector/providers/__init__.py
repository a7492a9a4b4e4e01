"""Old name of donor discovery: one pipeline for every provider."""

from __future__ import annotations

from semblend.core.moved import moved

__getattr__ = moved(__name__, "semblend.pipeline")
