"""OpenAI's two completion protocols, with the `semblend` object our own server adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sembench.mock_engine.engine import AdmittedRequest
from sembench.mock_engine.protocol import CompletionRequest, Token, event, read_count


class Completions:
    """``/v1/completions``: a text prompt."""

    kind = "text_completion"
    chunk_kind = "text_completion"

    def __init__(self, model: str) -> None:
        self._model = model

    def read(self, body: Any) -> CompletionRequest:
        if not isinstance(body, dict):
            raise ValueError("body: expected an object")
        options = body.get("stream_options")
        return CompletionRequest(
            prompt=self._prompt(body),
            max_tokens=read_count(body, "max_tokens", 16),
            stream=body.get("stream") is True,
            include_usage=isinstance(options, dict) and options.get("include_usage") is True,
            top_logprobs=self._top_logprobs(body),
            cache_salt=str(body.get("cache_salt") or ""),
        )

    def opening(self, completion: CompletionRequest, admitted: AdmittedRequest) -> str:
        """Nothing: the first event is the first token."""
        return ": started\n\n"

    def token(
        self, completion: CompletionRequest, admitted: AdmittedRequest, tokens: Sequence[Token]
    ) -> str:
        choice = {"index": 0, **self._delta(tokens[-1].text), "finish_reason": None}
        if completion.top_logprobs:
            choice["logprobs"] = self._logprobs(tokens[-1:])
        return event(self._envelope(admitted, self.chunk_kind, [choice]))

    def closing(
        self,
        completion: CompletionRequest,
        admitted: AdmittedRequest,
        tokens: Sequence[Token],
        times: Mapping[str, float],
        silent: bool,
    ) -> str:
        """The finish reason, the usage if requested, and the end marker."""
        finish = {"index": 0, **self._delta(""), "finish_reason": _finish(completion, tokens)}
        last = self._envelope(admitted, self.chunk_kind, [finish])
        text = event(last if silent else {**last, "semblend": _semblend(admitted, times)})
        if completion.include_usage and not silent:
            usage = {"usage": _usage(admitted, tokens)}
            text += event({**self._envelope(admitted, self.chunk_kind, []), **usage})
        return text + "data: [DONE]\n\n"

    def whole(
        self,
        completion: CompletionRequest,
        admitted: AdmittedRequest,
        tokens: Sequence[Token],
        times: Mapping[str, float],
        silent: bool,
    ) -> Mapping[str, Any]:
        text = "".join(token.text for token in tokens)
        choice = {"index": 0, **self._message(text), "finish_reason": _finish(completion, tokens)}
        if completion.top_logprobs:
            choice["logprobs"] = self._logprobs(tokens)
        body = self._envelope(admitted, self.kind, [choice])
        if silent:
            return body
        return {
            **body,
            "usage": _usage(admitted, tokens),
            "semblend": _semblend(admitted, times),
        }

    def _prompt(self, body: Mapping[str, Any]) -> str:
        prompt = body.get("prompt")
        if not isinstance(prompt, str):
            raise ValueError("prompt: expected a string")
        return prompt

    def _top_logprobs(self, body: Mapping[str, Any]) -> int:
        return read_count(body, "logprobs", 0, at_least=0) if body.get("logprobs") else 0

    def _delta(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _message(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.top_logprobs[0][1] for token in tokens],
            "top_logprobs": [dict(token.top_logprobs) for token in tokens],
        }

    def _envelope(
        self, admitted: AdmittedRequest, kind: str, choices: list[dict[str, Any]]
    ) -> dict[str, Any]:
        return {
            "id": f"cmpl-{admitted.request_id}",
            "object": kind,
            "created": 0,
            "model": self._model,
            "choices": choices,
        }


class Chat(Completions):
    """``/v1/chat/completions``: the prompt is the concatenated contents of the messages."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def opening(self, completion: CompletionRequest, admitted: AdmittedRequest) -> str:
        """The role: an event without content, which real servers send before the first token."""
        delta = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return event(self._envelope(admitted, self.chunk_kind, [delta]))

    def _prompt(self, body: Mapping[str, Any]) -> str:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise ValueError("messages: expected a list of at least one message")
        contents = [m.get("content") if isinstance(m, dict) else None for m in messages]
        if not all(isinstance(content, str) for content in contents):
            raise ValueError("messages: every content must be a string")
        return "\n\n".join(str(content) for content in contents)

    def _top_logprobs(self, body: Mapping[str, Any]) -> int:
        if body.get("logprobs") is not True:
            return 0
        return max(1, read_count(body, "top_logprobs", 1, at_least=0))

    def _delta(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text} if text else {}}

    def _message(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}}

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        return {
            "content": [
                {
                    "token": token.text,
                    "logprob": token.top_logprobs[0][1],
                    "top_logprobs": [
                        {"token": text, "logprob": value} for text, value in token.top_logprobs
                    ],
                }
                for token in tokens
            ]
        }


def _finish(completion: CompletionRequest, tokens: Sequence[Token]) -> str:
    return "length" if len(tokens) >= completion.max_tokens else "stop"


def _usage(admitted: AdmittedRequest, tokens: Sequence[Token]) -> dict[str, Any]:
    return {
        "prompt_tokens": admitted.prompt_tokens,
        "completion_tokens": len(tokens),
        "total_tokens": admitted.prompt_tokens + len(tokens),
        "prompt_tokens_details": {"cached_tokens": admitted.said.exact_tokens},
    }


def _semblend(admitted: AdmittedRequest, times: Mapping[str, float]) -> dict[str, Any]:
    said = admitted.said
    return {
        "outcome": said.outcome,
        "exact_tokens": said.exact_tokens,
        "reused_tokens": said.reused_tokens,
        "recomputed_tokens": 0,
        "computed_tokens": admitted.prompt_tokens - said.exact_tokens - said.reused_tokens,
        "donor_ids": sorted({span.donor_id for span in said.spans}),
        "similarity": 1.0 if said.spans else None,
        "policy": "none",
        "times": dict(times),
    }
