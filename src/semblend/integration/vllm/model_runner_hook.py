"""Old name of `worker`. Nothing is hooked any more; the worker class has the model."""

from __future__ import annotations

from semblend.core.moved import moved

__getattr__ = moved(__name__, "semblend.integration.vllm.worker")
