"""SGLang's native ``/generate``: every event has the text so far and `meta_info`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from sembench.mock_engine.engine import AdmittedRequest
from sembench.mock_engine.protocol import CompletionRequest, Token, event, read_count


class Generate:
    """Parses and formats ``/generate``. `cached_tokens` counts exact and fuzzy reuse together."""

    def __init__(self, model: str) -> None:
        self._model = model

    def read(self, body: Any) -> CompletionRequest:
        if not isinstance(body, dict) or not isinstance(body.get("text"), str):
            raise ValueError("text: expected a string")
        sampling = body.get("sampling_params") or {}
        if not isinstance(sampling, dict):
            raise ValueError("sampling_params: expected an object")
        wants = body.get("return_logprob") is True
        return CompletionRequest(
            prompt=body["text"],
            max_tokens=read_count(sampling, "max_new_tokens", 128),
            stream=body.get("stream") is True,
            top_logprobs=read_count(body, "top_logprobs_num", 1) if wants else 0,
            cache_salt=str(body.get("extra_key") or ""),
            request_id=str(body.get("rid") or ""),
        )

    def opening(self, completion: CompletionRequest, admitted: AdmittedRequest) -> str:
        """A comment: the first event with text is the first token."""
        return ": started\n\n"

    def token(
        self, completion: CompletionRequest, admitted: AdmittedRequest, tokens: Sequence[Token]
    ) -> str:
        """The text so far."""
        return event(self._body(completion, admitted, tokens, finish=None, silent=True))

    def closing(
        self,
        completion: CompletionRequest,
        admitted: AdmittedRequest,
        tokens: Sequence[Token],
        times: Mapping[str, float],
        silent: bool,
    ) -> str:
        """The whole text with its reports, and the end marker."""
        return event(self.whole(completion, admitted, tokens, times, silent)) + "data: [DONE]\n\n"

    def whole(
        self,
        completion: CompletionRequest,
        admitted: AdmittedRequest,
        tokens: Sequence[Token],
        times: Mapping[str, float],
        silent: bool,
    ) -> dict[str, Any]:
        kind = "length" if len(tokens) >= completion.max_tokens else "stop"
        body = self._body(completion, admitted, tokens, finish={"type": kind}, silent=silent)
        body["meta_info"]["e2e_latency"] = times["total_ms"] / 1000.0
        return body

    def _body(
        self,
        completion: CompletionRequest,
        admitted: AdmittedRequest,
        tokens: Sequence[Token],
        *,
        finish: dict[str, str] | None,
        silent: bool,
    ) -> dict[str, Any]:
        info: dict[str, Any] = {"id": admitted.request_id, "finish_reason": finish}
        if not silent:
            said = admitted.said
            info |= {
                "prompt_tokens": admitted.prompt_tokens,
                "completion_tokens": len(tokens),
                "cached_tokens": said.exact_tokens + said.reused_tokens,
                "fuzzy_cached_tokens": said.reused_tokens,
            }
        if completion.top_logprobs:
            info["output_token_logprobs"] = [
                [token.top_logprobs[0][1], _token_id(token.text), token.text] for token in tokens
            ]
            info["output_top_logprobs"] = [
                [[value, _token_id(text), text] for text, value in token.top_logprobs]
                for token in tokens
            ]
        return {"text": "".join(token.text for token in tokens), "meta_info": info}


def _token_id(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:4], "little") & 0x7FFFFFFF
