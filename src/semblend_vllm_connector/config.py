"""Old name of the connector's options."""

from __future__ import annotations

from semblend.core.moved import moved

__getattr__ = moved(__name__, "semblend.integration.vllm.options", "semblend.core.settings")
