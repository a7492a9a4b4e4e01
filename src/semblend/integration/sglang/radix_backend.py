"""Older name of `radix_cache`, the radix-cache backend."""

from __future__ import annotations

from semblend.core.moved import moved

__getattr__ = moved(__name__, "semblend.integration.sglang.radix_cache")
