"""What an engine offers the scheduler side of its adapter: answers, never decisions.

The side is called in this order (see :class:`~semblend.integration.scheduler.side.SchedulerSide`):

1. `arrived`, when the engine receives a request;
2. `matched_tokens`, whenever the engine is about to admit one;
3. `allocated`, when it has;
4. `fill`, once a step, with what the step computes;
5. `ended`, when a request is done;
6. `update`, with the workers' answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from semblend.integration.scheduler.request import Arrival


class EngineRequest(Protocol):
    """One request as its engine has it; the handle of an :class:`Arrival`."""

    def make_private(self, first_approximate_token: int) -> None:
        """Ensure that no other request can ever hit K/V from this token on. May be called again."""
        ...

    def undo_private(self) -> None:
        """The load failed and left nothing approximate: restore the previous state."""
        ...

    def keep_private(self) -> None:
        """The load succeeded: private for the request's whole life."""
        ...

    def tell_cached(self, *, exact_tokens: int, reused_tokens: int) -> None:
        """Correct what the engine says was cached: it counts whatever was claimed."""
        ...

    def samples(self, live: Iterable[Any]) -> int:
        """How many of the live requests' handles sample this very prompt, itself included."""
        ...

    def hints(self) -> dict[str, Any]:
        """The request's own hints to SemBlend."""
        ...

    @property
    def ended_normally(self) -> bool:
        """Whether its answer is complete."""
        ...

    @property
    def output_tokens(self) -> Sequence[int]:
        """What was sampled so far."""
        ...

    def free_blocks(self) -> None:
        """Return its blocks to the engine at once."""
        ...


class PlainRequest:
    """A request of an engine that says no more than it is asked: the least a handle can be."""

    __slots__ = ()

    def undo_private(self) -> None:
        """Nothing was made private."""

    def keep_private(self) -> None:
        """Nothing was made private."""

    def tell_cached(self, *, exact_tokens: int, reused_tokens: int) -> None:
        """The engine takes no correction."""

    def samples(self, live: Iterable[Any]) -> int:
        """Every sample of a prompt is a request of its own."""
        return 1

    def hints(self) -> dict[str, Any]:
        """Requests carry nothing for an adapter."""
        return {}

    @property
    def ended_normally(self) -> bool:
        """Not known: no answer is computed again."""
        return False

    @property
    def output_tokens(self) -> Sequence[int]:
        """Not known."""
        return ()

    def free_blocks(self) -> None:
        """The engine frees them itself."""


EngineHandle = TypeVar("EngineHandle", bound=EngineRequest, covariant=True)
Native = TypeVar("Native", contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """Blocks borrowed from the engine's pool."""

    block_ids: tuple[int, ...]
    blocks: Sequence[Any]
    """The engine's own objects."""


class SchedulerPort(Protocol[Native, EngineHandle]):
    """The engine's scheduler, as much of it as an adapter needs."""

    def request_id(self, native: Native) -> str:
        """The name of a request."""
        ...

    def handle(self, native: Native) -> EngineHandle:
        """The request's handle."""
        ...

    def arrival(self, native: Native) -> Arrival[EngineHandle]:
        """What a request is to us."""
        ...

    def blocks_of(self, request_id: str) -> tuple[int, ...]:
        """The blocks that hold a live request's K/V."""
        ...

    def borrow(self, count: int, *, keep_free: float) -> Loan | None:
        """Blocks for a computation of our own; None if less than that share would stay free."""
        ...

    def give_back(self, loan: Loan) -> None:
        """The computation has ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What the engine is about to run."""

    idle: bool
    """Whether it computes nothing."""
    computes: Iterable[tuple[str, int]] = ()
    """Request, and how many of its tokens have K/V once the step is done."""
    preempted: Iterable[str] = ()
    """Requests whose blocks are about to be overwritten."""
