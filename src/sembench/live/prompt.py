"""What is sent, and what a live run needs of whatever sends it. No HTTP here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sembench.live.reply import Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One thing to send."""

    request_id: str
    text: str
    max_tokens: int
    cache_salt: str = ""
    top_logprobs: int = 0
    messages: tuple[tuple[str, str] | Mapping[str, Any], ...] = ()
    """A conversation instead of `text`, as (role, content) or in OpenAI's shape; chat only."""
    tools: tuple[Mapping[str, Any], ...] = ()

    def chat_messages(self) -> list[dict[str, Any]]:
        """The messages in OpenAI's shape."""
        return [
            dict(message)
            if isinstance(message, Mapping)
            else {"role": message[0], "content": message[1]}
            for message in self.messages or (("user", self.text),)
        ]


class EngineClient(Protocol):
    """Sends prompts to one endpoint."""

    async def complete(self, prompt: Prompt) -> Reply:
        """Send one prompt and stream its answer."""
        ...

    async def close(self) -> None:
        """Let go of the connections."""
        ...
