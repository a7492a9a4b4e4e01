"""Older name of `semblend.integration.provider`."""

from __future__ import annotations

from semblend.core.moved import moved

__getattr__ = moved(__name__, "semblend.integration.provider")
