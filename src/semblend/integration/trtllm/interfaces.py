"""What a connector is handed, as types; `contract` says what it must be.

Only what every known generation has is stated; what some have is read with a default where
it is used. Facts about TensorRT-LLM, in our own words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class UpstreamRequest(Protocol):
    """`LlmRequest`, as C++ hands it to a connector."""

    @property
    def request_id(self) -> int:
        """The engine's number for it."""
        ...

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""
        ...

    def get_tokens(self, beam: int, /) -> Sequence[int]:
        """Prompt and generated tokens of a beam."""
        ...


class RequestData(Protocol):
    """One request in a step's scheduler output."""

    request_id: int
    new_tokens: Sequence[int]
    new_block_ids: Sequence[int]
    computed_position: int
    """In the first report of a load that holds up its step, without what was offered."""
    num_scheduled_tokens: int


class SchedulerOutput(Protocol):
    """A step: requests seen for the first time, and those seen before."""

    new_requests: Sequence[RequestData]
    cached_requests: Sequence[RequestData]
