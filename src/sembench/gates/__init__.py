"""Acceptance gates: a result passes if every requested metric is present and in bounds.

An absent metric fails the gate that asks for it, unless the caller allows it. Otherwise
saying nothing would be the easiest way to cheat.
"""

from __future__ import annotations

from sembench.gates.check import GateResult, check
from sembench.gates.table import GATES, Gate, Requested

__all__ = ["GATES", "Gate", "GateResult", "Requested", "check"]
