"""The values of a conversation: messages in OpenAI's shape, answers, and turns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of a tool; `arguments` is JSON text, as OpenAI's API has it."""

    call_id: str
    name: str
    arguments: str

    def to_dict(self) -> dict[str, Any]:
        """The call in OpenAI's shape."""
        return {
            "id": self.call_id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }

    @property
    def text(self) -> str:
        """The call as a model writes it: one JSON object between two marks."""
        arguments = json.loads(self.arguments)
        body = json.dumps({"name": self.name, "arguments": arguments}, ensure_ascii=False)
        return f"<tool_call>\n{body}\n</tool_call>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message of a history. `content` is null where an assistant only calls a tool."""

    role: str
    content: str | None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The message in OpenAI's shape."""
        data: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            data["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        if self.tool_call_id is not None:
            data["tool_call_id"] = self.tool_call_id
        return data

    @property
    def text(self) -> str:
        """Everything the message says, tool calls included."""
        return "\n".join([self.content or "", *(call.text for call in self.tool_calls)]).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the script has a model say. Templates strip `thinking` from earlier turns."""

    text: str = ""
    thinking: str = ""
    call: ToolCall | None = None

    @property
    def decoded(self) -> str:
        """The text a model generates: its thinking, and the answer or the call."""
        said = self.call.text if self.call is not None else self.text
        return f"<think>\n{self.thinking}\n</think>\n\n{said}" if self.thinking else said

    def message(self, said: str | None = None) -> ChatMessage:
        """The answer as the next request's history holds it; `said` is what a model really said."""
        if said is not None:
            return ChatMessage(role="assistant", content=without_thinking(said))
        calls = () if self.call is None else (self.call,)
        content = None if self.call is not None else self.text
        return ChatMessage(role="assistant", content=content, tool_calls=calls)


def without_thinking(text: str) -> str:
    """`text` as a template keeps it in later turns: without what stands up to ``</think>``."""
    return text.rpartition("</think>")[2].strip() if "</think>" in text else text


class TurnKind(StrEnum):
    """What a turn does to the history: the reason a prefix cache hits it or misses it."""

    OPENING = "opening"
    """The first request of a conversation."""
    FOLLOW_UP = "follow_up"
    """The history goes on; nothing before it changed."""
    TOOL_RESULT = "tool_result"
    """A tool's result comes back."""
    RETRIEVAL = "retrieval"
    """Passages come back that an earlier request held already."""
    NEW_DATE = "new_date"
    """The system prompt's date changed; everything behind it is as it was."""
    EDIT = "edit"
    """An earlier message was changed; everything behind it is as it was."""
    SUMMARY = "summary"
    """The model is asked to summarise a history that grew too long."""
    COMPACTED = "compacted"
    """The first request behind a compaction: system text, summary, the last messages."""
    FORK = "fork"
    """The first request of a sub-agent that shares context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request of a story."""

    conversation: str
    branch: str
    """``main``, or the sub-agent's name."""
    position: int
    """Number of the request within its story."""
    kind: TurnKind
    messages: tuple[ChatMessage, ...]
    tools: tuple[dict[str, Any], ...]
    answer: Answer
    """What the script answers."""
    question: str = ""
    expected: tuple[str, ...] = ()
    """Answers that are right; empty where nothing is asked that can be checked."""

    @property
    def turn_id(self) -> str:
        """A name that is equal for the same turn of the same story."""
        return f"{self.conversation}-{self.position:03d}"

    def to_dict(self) -> dict[str, Any]:
        """The turn as a line of a turns file."""
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
