"""Rotary positions: a model's kind, its rows, moving K, and the start-up proof."""

from __future__ import annotations

from semblend.kv.rotary_self_test import self_test, self_test_rotation
from semblend.kv.rotary_spec import Pairing, RotaryKind, RotarySpec
from semblend.kv.rotary_table import RotaryTable

__all__ = [
    "Pairing",
    "RotaryKind",
    "RotarySpec",
    "RotaryTable",
    "self_test",
    "self_test_rotation",
]
