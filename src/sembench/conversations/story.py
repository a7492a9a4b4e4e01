"""What stories share: a growing history and the turns asked on top of it."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from sembench.conversations.messages import Answer, ChatMessage, Turn, TurnKind
from sembench.errors import UsageError

Turns: TypeAlias = Generator[Turn, str | None, None]
"""Yields turns; receives what the model said (None: as scripted)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long stories get, in words rather than tokens, so that any tokenizer sees the same."""

    compact_words: int = 1800
    """Compact a history longer than this."""
    compactions: int = 2
    """An agent run ends shortly after its last compaction."""
    kept_messages: int = 4
    """Minimum number of messages a compaction keeps."""
    turns: int = 10
    """Requests per chat."""

    def __post_init__(self) -> None:
        for name, least in (("compact_words", 200), ("compactions", 0), ("turns", 1)):
            if getattr(self, name) < least:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag}: expected at least {least}, got {getattr(self, name)}")


class Story(Protocol):
    """A conversation or agent run, from first request to last."""

    @property
    def name(self) -> str: ...

    def play(self) -> Turns:
        """Yield the requests in the order they are sent."""
        ...


@dataclass(slots=True, kw_only=True)
class Numbering:
    """Hands out request positions and tool-call ids in order."""

    requests: int = 0
    calls: int = 0

    def request(self) -> int:
        """The next position."""
        self.requests += 1
        return self.requests - 1

    def call(self) -> str:
        """The next tool-call id: nine letters and digits, which every template accepts."""
        self.calls += 1
        return f"call{self.calls:05d}"


@dataclass(slots=True, kw_only=True)
class Branch:
    """One history: a system message and everything said since."""

    conversation: str
    numbering: Numbering
    system: str
    name: str = "main"
    tools: tuple[dict[str, Any], ...] = ()
    messages: list[ChatMessage] = field(default_factory=list)

    @property
    def words(self) -> int:
        """Length of the history in words."""
        return len(self.system.split()) + sum(len(m.text.split()) for m in self.messages)

    def user(self, text: str) -> None:
        self.messages.append(ChatMessage(role="user", content=text))

    def tool(self, text: str, call_id: str) -> None:
        self.messages.append(ChatMessage(role="tool", content=text, tool_call_id=call_id))

    def ask(
        self, kind: TurnKind, answer: Answer, *, question: str = "", expected: Sequence[str] = ()
    ) -> Generator[Turn, str | None, str]:
        """Send the history, append the answer and return it without its thinking."""
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
