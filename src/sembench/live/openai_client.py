"""Client for any OpenAI-compatible endpoint: vLLM, SGLang, TRT-LLM, Dynamo, SemBlend.

`usage.prompt_tokens_details.cached_tokens` counts prefix hits. A `semblend` object, in the
response or in its `kv_transfer_params` (vLLM, unstreamed), is the backend's own report of
semantic reuse. Servers without SemBlend send none.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from sembench.live.client import Reader, StreamingClient
from sembench.live.identity import RequestIdentity
from sembench.live.prompt import Prompt
from sembench.live.reply import Reply, finite_logprob


class Route(StrEnum):
    """Which completion route to use."""

    CHAT = "chat"
    COMPLETIONS = "completions"


class OpenAIClient(StreamingClient):
    """Streams chat (or text) completions at temperature 0."""

    def __init__(
        self,
        *,
        base_url: str,
        model: str,
        caller: RequestIdentity,
        timeout_seconds: float,
        route: Route = Route.CHAT,
        connections: int = 64,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            base_url=base_url.rstrip("/").removesuffix("/v1"),
            caller=caller,
            timeout_seconds=timeout_seconds,
            connections=connections,
        )
        self._model = model
        self._route = route
        self._extra = dict(extra_body or {})

    def reader(self) -> Reader:
        return OpenAIReader()

    def body(self, prompt: Prompt) -> tuple[str, dict[str, Any]]:
        """The path and body of the request for `prompt`."""
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": prompt.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extra,
        }
        if prompt.cache_salt:
            body["cache_salt"] = prompt.cache_salt
        if self._route is Route.CHAT:
            body["messages"] = prompt.chat_messages()
            if prompt.tools:
                body["tools"] = list(prompt.tools)
            if prompt.top_logprobs:
                body |= {"logprobs": True, "top_logprobs": prompt.top_logprobs}
            return "/v1/chat/completions", body
        body["prompt"] = prompt.text
        if prompt.top_logprobs:
            body["logprobs"] = prompt.top_logprobs
        return "/v1/completions", body


class OpenAIReader:
    """Collects deltas, usage, log probabilities and the `semblend` object of one stream."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._chunks = 0
        self._usage: Mapping[str, Any] = {}
        self._semblend: Mapping[str, Any] = {}
        self._logprobs: list[dict[str, float]] = []
        self._id: str | None = None

    def take(self, data: dict[str, Any]) -> bool:
        """Read one event; reasoning counts as content, an empty role delta does not."""
        self._id = self._id or _text_or_none(data.get("id"))
        if isinstance(usage := data.get("usage"), Mapping):
            self._usage = usage
        if (semblend := _report(data)) is not None:
            self._semblend = semblend
        has_content = False
        for choice in data.get("choices") or ():
            delta = choice.get("delta") or {}
            piece = delta.get("content") or choice.get("text") or ""
            thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
            if piece:
                self._text.append(piece)
            if piece or thought:
                has_content = True
                self._chunks += 1
            if isinstance(logprobs := choice.get("logprobs"), Mapping):
                self._logprobs.extend(_top_logprobs(logprobs))
        return has_content

    def reply(self, request_id: str) -> Reply:
        usage, semblend = self._usage, self._semblend
        details = usage.get("prompt_tokens_details")
        cached = _whole(details.get("cached_tokens")) if isinstance(details, Mapping) else None
        # A report separates exact from reused tokens; a cached count alone may include both.
        exact = _whole(semblend.get("exact_tokens"))
        exact = cached if exact is None else exact
        reused = _whole(semblend.get("reused_tokens"))
        continued = _whole(semblend.get("continued_tokens"))
        known = [tokens for tokens in (exact, reused, continued) if tokens is not None]
        times = semblend.get("times")
        times = times if isinstance(times, Mapping) else {}
        return Reply(
            request_id=request_id,
            text="".join(self._text),
            prompt_tokens=_whole(usage.get("prompt_tokens")),
            output_tokens=_whole(usage.get("completion_tokens")),
            exact_tokens=exact,
            reused_tokens=reused,
            continued_tokens=continued,
            candidate_tokens=_whole(semblend.get("reusable_tokens")),
            cached_tokens=sum(known) if known else None,
            confirmed_by="response" if known else None,
            outcome=_text_or_none(semblend.get("outcome")),
            reason=_text_or_none(semblend.get("reason")),
            similarity=_number(semblend.get("similarity")),
            engine_request_id=self._id,
            engine_ttft_ms=_number(times.get("ttft_ms")),
            queue_time_ms=_number(times.get("queue_ms")),
            top_logprobs=tuple(self._logprobs) or None,
            strip=semblend.get("strip"),
        )


def _report(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The `semblend` object of an event, if there is one."""
    transfer = data.get("kv_transfer_params")
    inside = transfer.get("semblend") if isinstance(transfer, Mapping) else None
    for found in (data.get("semblend"), inside):
        if isinstance(found, Mapping):
            return found
    return None


def _top_logprobs(logprobs: Mapping[str, Any]) -> list[dict[str, float]]:
    """Reads both formats: chat's `content` list and the older parallel lists."""
    if isinstance(content := logprobs.get("content"), list):
        return [
            {
                str(entry["token"]): finite_logprob(entry["logprob"])
                for entry in token["top_logprobs"]
            }
            or {str(token["token"]): finite_logprob(token["logprob"])}
            for token in content
        ]
    tops = logprobs.get("top_logprobs")
    return [
        {str(text): finite_logprob(value) for text, value in (top or {}).items()}
        for top in tops or ()
    ]


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
