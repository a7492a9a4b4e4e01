"""What is sent, and what a live run needs of whatever sends it. No HTTP here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sembench.live.reply import Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One thing to send."""

    request_id: str
    text: str
    max_tokens: int
    cache_salt: str = ""
    top_logprobs: int = 0
    messages: tuple[tuple[str, str], ...] = ()
    """A conversation as (role, content) instead of `text`; chat endpoints only."""


class EngineClient(Protocol):
    """Sends prompts to one endpoint."""

    async def complete(self, prompt: Prompt) -> Reply:
        """Send one prompt and stream its answer."""
        ...

    async def close(self) -> None:
        """Let go of the connections."""
        ...
