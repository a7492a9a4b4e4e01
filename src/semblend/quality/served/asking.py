"""Requests to an engine that serves, and its answers: all that a measurement sees of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from semblend.core.outcomes import Outcome
from semblend.core.tokens import TokenArray
from semblend.quality.seam import MeasuredFacts

TOP = 20
"""Log-probabilities asked for at every position; the most that engines give by default."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServedRequest:
    """One request."""

    tokens: TokenArray
    salt: str
    """Keeps prefix caches and donors of different items apart."""
    most: int
    """Tokens of the answer."""
    reuse: bool = False
    capture: bool = False
    policy: str | None = None

    @property
    def hints(self) -> dict[str, Any]:
        """`kv_transfer_params["semblend"]`."""
        said: dict[str, Any] = {"reuse": self.reuse, "capture": self.capture}
        return said if self.policy is None else {**said, "policy": self.policy}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedReply:
    """What came back."""

    tokens: tuple[str, ...]
    """Names of the greedy tokens, the end included where it was reached."""
    text: str
    top: tuple[Mapping[str, float], ...] = ()
    """Log-probabilities of the likeliest tokens at each position, by name."""
    said: Mapping[str, Any] = field(default_factory=dict)
    """The connector's report on the request."""

    def reused_tokens(self, policy: str) -> int:
        """Tokens that the engine confirmed to have taken from donors under this policy; else 0."""
        if self.said.get("outcome") != Outcome.MATERIALISED.value:
            return 0
        return int(self.said.get("reused_tokens", 0)) if self.said.get("policy") == policy else 0


class Asker(Protocol):
    """A running engine with the connector, in a mode that takes policies by request."""

    @property
    def facts(self) -> MeasuredFacts:
        """What it is."""
        ...

    @property
    def tokenizer(self) -> Any:
        """The model's own."""
        ...

    @property
    def forgets_prefixes(self) -> bool:
        """Whether its prefix cache can be emptied; otherwise donors are sent for each policy."""
        ...

    @property
    def batch(self) -> int:
        """Items to ask about at once."""
        ...

    def ask(self, questions: Sequence[ServedRequest]) -> list[ServedReply]:
        """Answer all of them greedily, together."""
        ...

    def settle(self) -> None:
        """Return once prompts that were to be kept can be found."""
        ...

    def forget_prefixes(self) -> None:
        """Empty the prefix cache; donors stay."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...
