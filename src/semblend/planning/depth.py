"""Policies that shift depths, and the table they go by."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from semblend.core.errors import PlanError
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.planning.policies.base import RecomputePolicy, policy_from_spec

TableT = TypeVar("TableT")


def drift_for(policy: RecomputePolicy, table: TableT | None) -> TableT | None:
    """The table a policy's copies are shifted by: none where it does not shift.

    Raises
    ------
    PlanError
        If it does and there is no table: what was certified could not be carried out.
    """
    if not policy.shifts_depth:
        return None
    if table is None:
        raise PlanError(
            f"{policy.spec} shifts depths: a table of depth drift of this model expected; "
            f"`semblend certify` makes one beside the certificate"
        )
    return table


def shifts_depth(spec: str) -> bool:
    """Whether a policy's copies are shifted."""
    return policy_from_spec(spec).shifts_depth


def table_for(spec: str, path: Path | None) -> str:
    """The file of the table for a worker of another process; empty where none is needed.

    Raises
    ------
    PlanError
        As :func:`drift_for` does.
    """
    return str(drift_for(policy_from_spec(spec), path)) if shifts_depth(spec) else ""


def declined_without_table(plan: Plan, *, has_table: bool) -> Plan:
    """The plan, declined by name if its policy shifts depths and there is nothing to go by."""
    if has_table or not plan.executable or not shifts_depth(plan.policy):
        return plan
    detail = f"{plan.policy} shifts depths, and no table of this model's depth drift is here"
    return plan.declined(DeclineReason.UNSUPPORTED, detail)
