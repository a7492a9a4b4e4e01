"""Acceptance gates: a result passes if everything asked of it is there and holds.

A metric that is absent fails the gate that asks for it, unless the caller says
otherwise: silence is the easiest way to cheat.
"""

from __future__ import annotations

from sembench.gates.check import Verdict, check
from sembench.gates.table import GATES, Gate, Requested

__all__ = ["GATES", "Gate", "Requested", "Verdict", "check"]
