"""A request of an engine that loads when it admits: its slots, and what its states mean there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from semblend.core.plan import Hole, Plan
from semblend.core.tokens import TokenArray
from semblend.integration.scheduler.request import Request

if TYPE_CHECKING:
    import torch

    from semblend.integration.tree.tree_chains import Following


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrivateLoad:
    """The region's slots, which belong to the request alone."""

    plan: Plan
    slots: torch.Tensor
    """int64 [end - exact_tokens]: slot of every token of [exact_tokens, end)."""

    @property
    def region(self) -> Hole:
        """Everything that is not the tree's: [exact_tokens, end)."""
        return Hole(self.plan.exact_tokens, self.plan.end)


@dataclass(slots=True, eq=False)
class Row:
    """What is matched for a request, and where its K/V is."""

    tokens: TokenArray
    """What the scheduler last matched: the prompt and, after a retraction, what was generated."""
    load: PrivateLoad | None = None
    losses: int = 0
    """Times a donor turned out to be gone."""
    donated: bool = False
    following: Following | None = None
    """What it takes from the conversation it continues."""


State: TypeAlias = Request[Row]
Loaded: TypeAlias = Mapping[int, tuple[Any, State]]
"""Row of a batch to its request and state; the state's load is set."""


def loads_of(loaded: Loaded) -> list[tuple[int, State, PrivateLoad]]:
    """Rows and states whose loads are set."""
    found = ((row, state, state.handle.load) for row, (_, state) in loaded.items())
    return [(row, state, load) for row, state, load in found if load is not None]


def released(state: State) -> None:
    """Its slots are gone: it was retracted and may come back, or was not admitted after all."""
    state.handle.load = state.handle.following = state.continuation = None
    state.account.continued_tokens = 0
    state.released()


def computed_exactly(state: State) -> None:
    """A load came to nothing. The engine was told that its K/V never enters the tree."""
    state.continuation = None
    state.failed()
    state.tainted = True
