"""Old name of the namespaces of vLLM configurations and requests."""

from __future__ import annotations

from semblend.core.moved import moved

__getattr__ = moved(__name__, "semblend.integration.vllm.namespaces", "semblend.core.namespace")
