"""The two shapes of OpenAI's generation API, whole and streamed, behind one interface.

A dialect handles one choice of an answer and turns the engine's events into that
endpoint's objects. It knows nothing about HTTP, queues or engines.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from pydantic import BaseModel

from semblend.engine.api import FinishReason, TokenEvent, TokenLogprob
from semblend.serve.openai.replies import (
    AlternativeLogprob,
    ChatChoice,
    ChatLogprob,
    ChatLogprobs,
    ChatReply,
    ChatReplyMessage,
    ReuseReport,
    TextChoice,
    TextLogprobs,
    TextReply,
    Usage,
)

Chunk = dict[str, Any]


class Dialect(Protocol):
    """How one endpoint formats an answer."""

    def choice(
        self, events: Sequence[TokenEvent], finish: FinishReason, report: ReuseReport | None
    ) -> Any:
        """The complete choice; includes its own report if there are several choices."""
        ...

    def whole(self, choices: Sequence[Any], usage: Usage, report: ReuseReport) -> BaseModel:
        """The complete reply with all choices."""
        ...

    def opening(self) -> Chunk | None:
        """The first chunk of a stream, if any."""
        ...

    def token(self, event: TokenEvent) -> Chunk | None:
        """One token of a stream; None if there is nothing to show."""
        ...

    def closing(self, finish: FinishReason) -> Chunk:
        """The chunk that says why the answer ended."""
        ...

    def usage(self, usage: Usage) -> Chunk:
        """The chunk with token counts, after the closing one."""
        ...


class _Base:
    """What both endpoints share."""

    def __init__(
        self,
        *,
        reply_id: str,
        model: str,
        kind: str,
        tokenizer: Any,
        top_logprobs: int | None,
        index: int,
    ) -> None:
        self._index = index
        self.reply_id = reply_id
        self.model = model
        self.created = int(time.time())
        self._kind = kind
        self._tokenizer = tokenizer
        self._top = top_logprobs
        """Number of alternatives requested; None: no log probabilities."""

    def _chunk(self, choices: list[dict[str, Any]]) -> Chunk:
        return {
            "id": self.reply_id,
            "object": self._kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def usage(self, usage: Usage) -> Chunk:
        return {**self._chunk([]), "usage": usage.model_dump()}

    def _piece(self, token_id: int) -> str:
        return str(self._tokenizer.decode([token_id]))


class ChatDialect(_Base):
    """`chat.completion` and its chunks."""

    def __init__(
        self,
        *,
        reply_id: str,
        model: str,
        tokenizer: Any,
        top_logprobs: int | None,
        index: int = 0,
    ) -> None:
        super().__init__(
            reply_id=f"chatcmpl-{reply_id}",
            model=model,
            kind="chat.completion.chunk",
            tokenizer=tokenizer,
            top_logprobs=top_logprobs,
            index=index,
        )

    def choice(
        self, events: Sequence[TokenEvent], finish: FinishReason, report: ReuseReport | None
    ) -> ChatChoice:
        return ChatChoice(
            index=self._index,
            message=ChatReplyMessage(content="".join(event.text for event in events)),
            logprobs=self._logprobs(events),
            finish_reason=finish.value,
            semblend=report,
        )

    def whole(self, choices: Sequence[ChatChoice], usage: Usage, report: ReuseReport) -> ChatReply:
        return ChatReply(
            id=self.reply_id,
            created=self.created,
            model=self.model,
            choices=list(choices),
            usage=usage,
            semblend=report,
        )

    def opening(self) -> Chunk | None:
        """The role, before any text."""
        return self._delta({"role": "assistant", "content": ""}, None, None)

    def token(self, event: TokenEvent) -> Chunk | None:
        logprobs = self._logprobs([event])
        if not event.text and logprobs is None:
            return None
        dumped = None if logprobs is None else logprobs.model_dump()
        return self._delta({"content": event.text}, dumped, None)

    def closing(self, finish: FinishReason) -> Chunk:
        return self._delta({}, None, finish.value)

    def _delta(
        self, delta: dict[str, str], logprobs: dict[str, Any] | None, finish: str | None
    ) -> Chunk:
        return self._chunk(
            [{"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]
        )

    def _logprobs(self, events: Sequence[TokenEvent]) -> ChatLogprobs | None:
        if self._top is None:
            return None
        return ChatLogprobs(
            content=[
                ChatLogprob(
                    **self._alternative(event.token_id, event.logprob).model_dump(),
                    top_logprobs=[
                        self._alternative(other.token_id, other.logprob)
                        for other in event.top_logprobs[: self._top]
                    ],
                )
                for event in events
            ]
        )

    def _alternative(self, token_id: int, logprob: float | None) -> AlternativeLogprob:
        piece = self._piece(token_id)
        # A token can be part of a character; then its text does not determine its bytes.
        known = "\ufffd" not in piece
        return AlternativeLogprob(
            token=piece,
            logprob=_finite(logprob),
            bytes=list(piece.encode()) if known else None,
        )


class TextDialect(_Base):
    """`text_completion`, whole and in chunks."""

    def __init__(
        self,
        *,
        reply_id: str,
        model: str,
        tokenizer: Any,
        top_logprobs: int | None,
        index: int = 0,
    ) -> None:
        super().__init__(
            reply_id=f"cmpl-{reply_id}",
            model=model,
            kind="text_completion",
            tokenizer=tokenizer,
            top_logprobs=top_logprobs,
            index=index,
        )
        self._offset = 0

    def choice(
        self, events: Sequence[TokenEvent], finish: FinishReason, report: ReuseReport | None
    ) -> TextChoice:
        return TextChoice(
            index=self._index,
            text="".join(event.text for event in events),
            logprobs=self._logprobs(events),
            finish_reason=finish.value,
            semblend=report,
        )

    def whole(self, choices: Sequence[TextChoice], usage: Usage, report: ReuseReport) -> TextReply:
        return TextReply(
            id=self.reply_id,
            created=self.created,
            model=self.model,
            choices=list(choices),
            usage=usage,
            semblend=report,
        )

    def opening(self) -> Chunk | None:
        """Nothing: a completion's stream starts with its text."""
        return None

    def token(self, event: TokenEvent) -> Chunk | None:
        logprobs = self._logprobs([event])
        if not event.text and logprobs is None:
            return None
        dumped = None if logprobs is None else logprobs.model_dump()
        return self._piece_chunk(event.text, dumped, None)

    def closing(self, finish: FinishReason) -> Chunk:
        return self._piece_chunk("", None, finish.value)

    def _piece_chunk(self, text: str, logprobs: dict[str, Any] | None, finish: str | None) -> Chunk:
        return self._chunk(
            [{"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": finish}]
        )

    def _logprobs(self, events: Sequence[TokenEvent]) -> TextLogprobs | None:
        if self._top is None:
            return None
        pieces = [self._piece(event.token_id) for event in events]
        offsets: list[int] = []
        for event in events:
            offsets.append(self._offset)
            self._offset += len(event.text)
        return TextLogprobs(
            tokens=pieces,
            token_logprobs=[_finite(event.logprob) for event in events],
            top_logprobs=[self._by_piece(event.top_logprobs) for event in events],
            text_offset=offsets,
        )

    def _by_piece(self, alternatives: Sequence[TokenLogprob]) -> dict[str, float]:
        return {
            self._piece(other.token_id): _finite(other.logprob)
            for other in alternatives[: self._top]
        }


def _finite(logprob: float | None) -> float:
    """JSON has no infinity; OpenAI uses -9999 for a probability of zero."""
    return -9999.0 if logprob is None or not logprob > -9999.0 else float(logprob)
