"""Policies that shift depths, and the table they use."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from semblend.core.errors import PlanError
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.planning.policies.base import RecomputePolicy, policy_from_spec

TableT = TypeVar("TableT")


def drift_for(policy: RecomputePolicy, table: TableT | None) -> TableT | None:
    """The table for shifting a policy's copies; None if it does not shift.

    Raises
    ------
    PlanError
        If it shifts and there is no table, so what was certified cannot be executed.
    """
    if not policy.shifts_depth:
        return None
    if table is None:
        raise PlanError(
            f"{policy.spec} shifts depths and needs this model's depth-drift table; "
            f"`semblend certify` writes it next to the certificate"
        )
    return table


def shifts_depth(spec: str) -> bool:
    """Whether a policy shifts its copies."""
    return policy_from_spec(spec).shifts_depth


def table_for(spec: str, path: Path | None) -> str:
    """The table's file for a worker in another process; empty if none is needed.

    Raises
    ------
    PlanError
        As in :func:`drift_for`.
    """
    return str(drift_for(policy_from_spec(spec), path)) if shifts_depth(spec) else ""


def declined_without_table(plan: Plan, *, has_table: bool) -> Plan:
    """Decline the plan if its policy shifts depths and there is no table."""
    if has_table or not plan.executable or not shifts_depth(plan.policy):
        return plan
    detail = f"{plan.policy} shifts depths, but this model has no depth-drift table"
    return plan.declined(DeclineReason.UNSUPPORTED, detail)
