"""Engines of tests/engine, here too."""

from __future__ import annotations

from tests.engine.conftest import make_engine

__all__ = ["make_engine"]
