"""Planners: adapters that propose spans, with a ceiling (oracle) and a floor (exact-block)."""

from __future__ import annotations

from sembench.planners.base import Planner, PlannerDonor, PlannerRequest, PlannerSettings
from sembench.planners.loading import BUILT_IN, make_planner

__all__ = [
    "BUILT_IN",
    "Planner",
    "PlannerDonor",
    "PlannerRequest",
    "PlannerSettings",
    "make_planner",
]
