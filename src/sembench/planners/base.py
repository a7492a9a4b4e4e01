"""What SemBench needs of a planner, whoever wrote it.

An adapter is a class with three methods, named on the command line as
``--planner module:Class``. It is made once a run, called with the recipient's
tokens after its donors were registered, and proposes spans; it never sees what is
expected of it, nor whether an item is a negative control.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sembench.blocks import ProposedSpan, TokenArray

__all__ = ["Planner", "PlannerDonor", "PlannerRequest", "PlannerSettings", "ProposedSpan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    """How a planner is set up. Adapters take what they understand."""

    block_size: int
    tokenizer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Flags of the command line that are a planner's own."""


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

    def register(self, donor: PlannerDonor) -> None:
        """Take a donor up."""
        ...

    def forget(self, donor_id: str) -> None:
        """Drop a donor: it must not be proposed again."""
        ...

    def plan(self, request: PlannerRequest) -> Sequence[ProposedSpan]:
        """The spans to copy; empty where nothing is worth it."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """What a result says about the planner: name, version, settings."""
        ...
