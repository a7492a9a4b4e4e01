"""Conversation values: messages in OpenAI's format, answers and turns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One tool call; `arguments` is JSON text, as in OpenAI's API."""

    call_id: str
    name: str
    arguments: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.call_id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }

    @property
    def text(self) -> str:
        """The call as a model writes it: one JSON object between two markers."""
        arguments = json.loads(self.arguments)
        body = json.dumps({"name": self.name, "arguments": arguments}, ensure_ascii=False)
        return f"<tool_call>\n{body}\n</tool_call>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message of a history. `content` is null if an assistant only calls a tool."""

    role: str
    content: str | None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            data["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        if self.tool_call_id is not None:
            data["tool_call_id"] = self.tool_call_id
        return data

    @property
    def text(self) -> str:
        """All text of the message, including tool calls."""
        return "\n".join([self.content or "", *(call.text for call in self.tool_calls)]).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A scripted model answer. Templates strip `thinking` from earlier turns."""

    text: str = ""
    thinking: str = ""
    call: ToolCall | None = None

    @property
    def decoded(self) -> str:
        """The text a model generates: its thinking, then the answer or the call."""
        said = self.call.text if self.call is not None else self.text
        return f"<think>\n{self.thinking}\n</think>\n\n{said}" if self.thinking else said

    def message(self, said: str | None = None) -> ChatMessage:
        """The answer as history for the next request; `said` is what the model really said."""
        if said is not None:
            return ChatMessage(role="assistant", content=without_thinking(said))
        calls = () if self.call is None else (self.call,)
        content = None if self.call is not None else self.text
        return ChatMessage(role="assistant", content=content, tool_calls=calls)


def without_thinking(text: str) -> str:
    """`text` as a template keeps it in later turns: without everything up to ``</think>``."""
    return text.rpartition("</think>")[2].strip() if "</think>" in text else text


class TurnKind(StrEnum):
    """What a turn does to the history, which decides whether a prefix cache hits."""

    OPENING = "opening"
    """The first request of a conversation."""
    FOLLOW_UP = "follow_up"
    """The history continues; nothing before it changed."""
    TOOL_RESULT = "tool_result"
    """A tool's result comes back."""
    RETRIEVAL = "retrieval"
    """Passages return that an earlier request already held."""
    NEW_DATE = "new_date"
    """The system prompt's date changed; everything after it is unchanged."""
    EDIT = "edit"
    """An earlier message changed; everything after it is unchanged."""
    SUMMARY = "summary"
    """The model is asked to summarize a history that has grown too long."""
    COMPACTED = "compacted"
    """The first request after a compaction: system text, summary, last messages."""
    FORK = "fork"
    """The first request of a sub-agent that shares context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    conversation: str
    branch: str
    """``main``, or the sub-agent's name."""
    position: int
    """Number of the request in its story."""
    kind: TurnKind
    messages: tuple[ChatMessage, ...]
    tools: tuple[dict[str, Any], ...]
    answer: Answer
    """The scripted answer."""
    question: str = ""
    expected: tuple[str, ...] = ()
    """Correct answers; empty if the question cannot be checked."""

    @property
    def turn_id(self) -> str:
        """A name that is stable for a turn of a story."""
        return f"{self.conversation}-{self.position:03d}"

    def to_dict(self) -> dict[str, Any]:
        """The turn as one line of a turns file."""
        return {
            "conversation": self.conversation,
            "branch": self.branch,
            "position": self.position,
            "kind": self.kind.value,
            "messages": [message.to_dict() for message in self.messages],
            "tools": list(self.tools),
            "answer": self.answer.decoded,
            "question": self.question,
            "expected": list(self.expected),
        }
