"""What is sent, and the client interface a live run needs. No HTTP here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sembench.live.reply import Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    request_id: str
    text: str
    max_tokens: int
    cache_salt: str = ""
    top_logprobs: int = 0
    messages: tuple[tuple[str, str] | Mapping[str, Any], ...] = ()
    """A conversation instead of `text`, as (role, content) or in OpenAI's format; chat only."""
    tools: tuple[Mapping[str, Any], ...] = ()

    def chat_messages(self) -> list[dict[str, Any]]:
        """The messages in OpenAI's format."""
        return [
            dict(message)
            if isinstance(message, Mapping)
            else {"role": message[0], "content": message[1]}
            for message in self.messages or (("user", self.text),)
        ]


class EngineClient(Protocol):
    async def complete(self, prompt: Prompt) -> Reply: ...

    async def close(self) -> None: ...
