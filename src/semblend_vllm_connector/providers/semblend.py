"""Old name of the pipeline that finds donors."""

from __future__ import annotations

from semblend.core.moved import moved

__getattr__ = moved(__name__, "semblend.pipeline")
