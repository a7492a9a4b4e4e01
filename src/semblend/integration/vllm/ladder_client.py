"""Climbs the staged ladder against a vLLM server: one prompt in, one completion out.

Uses only public API: `/v1/completions` with token ids, `cache_salt` and
`kv_transfer_params`. The server runs the connector with mode `segmented` (or
`segmented_experimental`) and execution `staged`; it needs no worker class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semblend.core.errors import MissingExtraError, RequestError
from semblend.integration.ladder import RungReply, climb


class LadderClient:
    """Sends prompts of token ids as ladders. Use as an async context manager."""

    def __init__(
        self, base_url: str, model: str, *, api_key: str | None = None, timeout_s: float = 600.0
    ) -> None:
        try:
            import httpx
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                package="httpx", extra="fleet", purpose="the ladder client"
            ) from error
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(base_url=base_url, headers=headers, timeout=timeout_s)
        self._model = model

    async def __aenter__(self) -> LadderClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def complete(
        self, tokens: Sequence[int], *, user_salt: str | None = None, **parameters: Any
    ) -> dict[str, Any]:
        """The completion of a prompt, as the server's JSON.

        `parameters` are those of `/v1/completions` (max_tokens, temperature, …). They apply to
        the last rung, which is the prompt itself. Streaming is not supported.
        """
        if parameters.get("stream"):
            raise RequestError("stream: a ladder cannot stream its answer")

        async def submit(
            prompt: Sequence[int], salt: str | None, hints: dict[str, Any], is_prompt: bool
        ) -> RungReply[dict[str, Any]]:
            body: dict[str, Any] = {"model": self._model, "prompt": list(prompt)}
            body.update(parameters if is_prompt else {"max_tokens": 1, "temperature": 0.0})
            if salt is not None:
                body["cache_salt"] = salt
            if hints:
                body["kv_transfer_params"] = {"semblend": hints}
            response = await self._http.post("/v1/completions", json=body)
            response.raise_for_status()
            reply: dict[str, Any] = response.json()
            said = (reply.get("kv_transfer_params") or {}).get("semblend") or {}
            return RungReply(reply=reply, semblend=said)

        return (await climb(tokens, submit, user_salt=user_salt)).reply
