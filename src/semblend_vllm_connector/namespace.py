"""Older name of what makes a namespace of a vLLM configuration and request."""

from __future__ import annotations

from semblend.core.moved import moved

__getattr__ = moved(__name__, "semblend.integration.vllm.namespaces", "semblend.core.namespace")
