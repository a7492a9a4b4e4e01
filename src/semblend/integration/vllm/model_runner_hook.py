"""Older name of `worker`: nothing is hooked any more, a worker class has the model."""

from __future__ import annotations

from semblend.core.moved import moved

__getattr__ = moved(__name__, "semblend.integration.vllm.worker")
