"""What the fuzz asks of an engine, and what it keeps of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.engine_fuzz.comparing import Answer
from benchmarks.engine_fuzz.traffic import MOST_TOKENS, Asked
from semblend.core.faults import FaultPoint
from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """K/V that a request was given."""

    plan: Plan
    after: int = 0
    """Tokens it had answered before: an engine may take a request back and load for it again."""


@dataclass(slots=True)
class Record:
    """What happened to one request."""

    asked: Asked
    arrived: int
    """The step it arrived in."""
    answer: tuple[int, ...] = ()
    finished: bool = False
    aborted: bool = False
    said: dict[str, Any] = field(default_factory=dict)
    """What was reported about it."""
    loads: list[Load] = field(default_factory=list)
    tainted: bool = False
    preemptions: int = 0

    @property
    def reused(self) -> bool:
        """Whether reuse was reported."""
        return self.said.get("outcome") == "materialised"


class Fired(Protocol):
    """Faults that were planted."""

    fired: Mapping[FaultPoint, int]


class FuzzEngine(Protocol):
    """Requests go in one by one and come out of `step`; references run alone."""

    steps: int
    tokenizer: Any
    largest_batch: int
    split_prompts: set[str]
    """Requests whose prompt was computed in more than one step."""
    donors: dict[str, TokenArray]
    """Tokens of every donor there ever was."""
    givers: dict[str, str | None]
    """Salt of the request that became each donor."""

    def add(self, asked: Asked) -> Record:
        """Send a request."""

    def abort(self, record: Record) -> None:
        """Abort a request; what it answered so far stays."""

    def step(self) -> int:
        """Run one step; return how many requests produced output."""

    def drain(self) -> bool:
        """Work until there is none left; False if something never ends."""

    def planted(self, spec: str, *, seed: int) -> AbstractContextManager[Fired]:
        """Plant faults where the adapter runs."""

    def fresh_salt(self) -> str:
        """An unused salt."""

    def run_all(
        self,
        prompts: Sequence[TokenArray],
        salts: Sequence[str],
        hints: dict[str, Any],
        most: int | Sequence[int] = MOST_TOKENS,
    ) -> list[Answer]:
        """Run prompts in one batch, to their ends."""

    def rewrite_plans(self, rewrite: Callable[[Plan, TokenArray], Plan] | None) -> None:
        """What every plan passes through from now on."""

    def make_room(self) -> None:
        """Let nothing of what ran before stand in the way of a replay."""

    def forget_prefixes(self) -> bool:
        """Empty the engine's own prefix cache where donors outlive that; False if it is in use."""

    def push_to_disk(self, tokens: TokenArray) -> None:
        """Store so many others that donors leave memory."""

    def spoil(self, record: Record) -> bool:
        """Overwrite the K/V of a running request with a load, as a wrong load would."""

    def left_behind(self) -> dict[str, int]:
        """What must be empty once every request has ended."""

    def close(self) -> None:
        """End the engine."""
