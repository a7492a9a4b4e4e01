"""What stories share: a history that grows, and the turns that are asked on top of it."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from sembench.conversations.messages import Answer, ChatMessage, Turn, TurnKind
from sembench.errors import UsageError

Turns: TypeAlias = Generator[Turn, str | None, None]
"""Turns out; what the model said in (None: as scripted)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long stories get. Words, not tokens: a story is the same for every tokenizer."""

    compact_words: int = 1800
    """A history longer than this is compacted."""
    compactions: int = 2
    """An agent's run ends a little behind its last compaction."""
    kept_messages: int = 4
    """Messages a compaction keeps as they are, at least."""
    turns: int = 10
    """Requests of a chat."""

    def __post_init__(self) -> None:
        for name, least in (("compact_words", 200), ("compactions", 0), ("turns", 1)):
            if getattr(self, name) < least:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag}: at least {least} expected, got {getattr(self, name)}")


class Story(Protocol):
    """A conversation or an agent's run, from its first request to its last."""

    @property
    def name(self) -> str:
        """The conversation's name."""
        ...

    def play(self) -> Turns:
        """The requests in the order they are sent."""
        ...


@dataclass(slots=True, kw_only=True)
class Numbering:
    """Positions of requests and ids of tool calls, in the order they are made."""

    requests: int = 0
    calls: int = 0

    def request(self) -> int:
        """The next position."""
        self.requests += 1
        return self.requests - 1

    def call(self) -> str:
        """The next id of a tool call: nine letters and digits, which every template takes."""
        self.calls += 1
        return f"call{self.calls:05d}"


@dataclass(slots=True, kw_only=True)
class Branch:
    """One history: a system message and what was said since."""

    conversation: str
    numbering: Numbering
    system: str
    name: str = "main"
    tools: tuple[dict[str, Any], ...] = ()
    messages: list[ChatMessage] = field(default_factory=list)

    @property
    def words(self) -> int:
        """Length of the history."""
        return len(self.system.split()) + sum(len(m.text.split()) for m in self.messages)

    def user(self, text: str) -> None:
        """Add what a user says."""
        self.messages.append(ChatMessage(role="user", content=text))

    def tool(self, text: str, call_id: str) -> None:
        """Add what a tool returns."""
        self.messages.append(ChatMessage(role="tool", content=text, tool_call_id=call_id))

    def ask(
        self, kind: TurnKind, answer: Answer, *, question: str = "", expected: Sequence[str] = ()
    ) -> Generator[Turn, str | None, str]:
        """Send the history and take the answer up; returns the answer without its thinking."""
        said = yield Turn(
            conversation=self.conversation,
            branch=self.name,
            position=self.numbering.request(),
            kind=kind,
            messages=(ChatMessage(role="system", content=self.system), *self.messages),
            tools=self.tools,
            answer=answer,
            question=question,
            expected=tuple(expected),
        )
        message = answer.message(said)
        self.messages.append(message)
        return message.text


def scripted_turns(story: Story) -> Iterator[Turn]:
    """All turns of a story with its own answers."""
    yield from story.play()
