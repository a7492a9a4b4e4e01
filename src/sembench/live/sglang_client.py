"""SGLang's native protocol: ``/generate`` with `meta_info`, and ``/flush_cache``.

`meta_info.cached_tokens` counts exact and fuzzy reuse together. The fuzzy part is in
`meta_info.semblend` if SemBlend runs inside; otherwise it is only in the engine's log, or
in a field a patched server adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sembench.live.client import Reader, StreamingClient
from sembench.live.prompt import Prompt
from sembench.live.reply import Reply, finite_logprob


class SglangClient(StreamingClient):
    """Streams ``/generate`` at temperature 0."""

    async def flush(self) -> None:
        await self.post("/flush_cache")

    def reader(self) -> Reader:
        return SglangReader()

    def body(self, prompt: Prompt) -> tuple[str, dict[str, Any]]:
        """The path and body of the request for `prompt`."""
        body: dict[str, Any] = {
            "text": prompt.text,
            "rid": prompt.request_id,
            "sampling_params": {
                "temperature": 0,
                "max_new_tokens": prompt.max_tokens,
                "ignore_eos": False,
            },
            "stream": True,
        }
        if prompt.cache_salt:
            body["extra_key"] = prompt.cache_salt
        if prompt.top_logprobs:
            body |= {"return_logprob": True, "top_logprobs_num": prompt.top_logprobs}
        return "/generate", body


class SglangReader:
    """Keeps the latest cumulative text and `meta_info` of one stream."""

    def __init__(self) -> None:
        self._text = ""
        self._meta: dict[str, Any] = {}

    def take(self, data: dict[str, Any]) -> bool:
        before = self._text
        if isinstance(text := data.get("text"), str):
            self._text = text
        if isinstance(meta := data.get("meta_info"), Mapping):
            self._meta |= meta
        return len(self._text) > len(before)

    def reply(self, request_id: str) -> Reply:
        meta = self._meta
        cached = _whole(meta.get("cached_tokens"))
        report = _report(meta.get("semblend"))
        fuzzy = _whole(report.get("reused_tokens", meta.get("fuzzy_cached_tokens")))
        split = cached is not None and fuzzy is not None and fuzzy <= cached
        engine_id = meta.get("id")
        return Reply(
            request_id=request_id,
            text=self._text,
            prompt_tokens=_whole(meta.get("prompt_tokens")),
            output_tokens=_whole(meta.get("completion_tokens")),
            cached_tokens=cached,
            exact_tokens=cached - fuzzy
            if split and cached is not None and fuzzy is not None
            else None,
            reused_tokens=fuzzy if split else None,
            confirmed_by=None if cached is None else "response",
            outcome=report.get("outcome"),
            reason=report.get("reason"),
            engine_request_id=engine_id if isinstance(engine_id, str) else None,
            token_ids=_token_ids(meta.get("output_token_logprobs")),
            top_logprobs=_top_logprobs(meta.get("output_top_logprobs")),
        )


def _report(value: Any) -> Mapping[str, Any]:
    """SemBlend's report: an object, or a list with one per prompt."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value if isinstance(value, Mapping) else {}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _token_ids(entries: Any) -> tuple[int, ...] | None:
    """Token ids from `[[logprob, token id, text], …]`."""
    if not isinstance(entries, list):
        return None
    return tuple(int(entry[1]) for entry in entries)


def _top_logprobs(positions: Any) -> tuple[dict[str, float], ...] | None:
    """Log probabilities by token id, from `[[[logprob, token id, text], …], …]`."""
    if not isinstance(positions, list):
        return None
    return tuple(
        {str(entry[1]): finite_logprob(entry[0]) for entry in position or ()}
        for position in positions
    )
