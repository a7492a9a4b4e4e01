"""Policies that shift depths, and the table they go by."""

from __future__ import annotations

from typing import TypeVar

from semblend.core.errors import PlanError
from semblend.planning.policies.base import RecomputePolicy

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
