"""The planner interface.

An adapter is a class with three methods, named on the command line as
``--planner module:Class``. It is created once per run and asked for spans after a
recipient's donors were registered. It never sees the expected result, nor whether an item
is a negative control.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sembench.blocks import ProposedSpan, TokenArray

__all__ = ["Planner", "PlannerDonor", "PlannerRequest", "PlannerSettings", "ProposedSpan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    """How to set up a planner. Adapters use what they understand."""

    block_size: int
    tokenizer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Command-line flags meant for the planner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerDonor:
    """A donor as a planner sees it."""

    donor_id: str
    tokens: TokenArray
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerRequest:
    """A recipient as a planner sees it."""

    request_id: str
    tokens: TokenArray
    text: str


class Planner(Protocol):
    """Proposes spans of registered donors for a request."""

    def __init__(self, settings: PlannerSettings) -> None: ...

    def register(self, donor: PlannerDonor) -> None: ...

    def forget(self, donor_id: str) -> None:
        """Drop a donor. It must not be proposed again."""
        ...

    def plan(self, request: PlannerRequest) -> Sequence[ProposedSpan]:
        """The spans to copy; empty if nothing is worth copying."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """What a result says about the planner: name, version, settings."""
        ...
