"""What travels between the two sides of the connector, as plain values.

Leader to every rank, each step: :class:`ConnectorMeta`, pickled and broadcast by
TensorRT-LLM. Ranks to the leader: :class:`RankReport`, through
:mod:`~semblend.integration.trtllm.agreement`. Nothing here refers to a tensor or a request
object.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from semblend.core.plan import Span
from semblend.core.tokens import TokenArray
from semblend.integration.trtllm.semantic_plan import SemanticKvPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCommand:
    """Fill [start, end) of a request's blocks with spans; whole blocks, no token left open."""

    load_id: int
    """Numbers loads: a request id may come again."""
    request_id: int
    block_ids: tuple[int, ...]
    start: int
    end: int
    spans: tuple[Span, ...]
    tokens: TokenArray
    """The prompt up to `end`, int32: what a span holds is compared once more."""
    plan: SemanticKvPlan
    asynchronous: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureCommand:
    """Copy the K/V of a prompt that this step finishes computing."""

    capture_id: int
    request_id: int
    donor_id: str
    block_ids: tuple[int, ...]
    tokens: TokenArray
    """The whole prompt, int32."""
    share_key: bytes
    """The namespace's key: names the segments."""


@dataclass(slots=True)
class ConnectorMeta:
    """One step's orders, the same on every rank."""

    loads: list[LoadCommand] = field(default_factory=list)
    captures: list[CaptureCommand] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    """Donors to let go of, before anything else of this step."""


@dataclass(slots=True)
class RankReport:
    """What one rank did; None in place of a text means that it went well."""

    loads: dict[int, str | None] = field(default_factory=dict)
    captures: dict[int, str | None] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to say."""
        return not (self.loads or self.captures)
