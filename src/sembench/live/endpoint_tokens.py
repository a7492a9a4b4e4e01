"""Token ids from the endpoint's own tokenizer and template, if it has ``/tokenize``.

`semblend serve` and vLLM have it. What a prefix cache would serve is then counted in the
engine's own tokens rather than in a similar layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import numpy as np

from sembench.blocks import TokenArray
from sembench.live.identity import RequestIdentity


class EndpointTokens:
    """Asks one endpoint; after a refusal it stops asking."""

    def __init__(
        self, *, base_url: str, model: str, caller: RequestIdentity, timeout_seconds: float = 60.0
    ) -> None:
        self._url = base_url.rstrip("/").removesuffix("/v1") + "/tokenize"
        self._model = model
        self._headers = caller.headers("sembench-tokenize")
        self._http = httpx.AsyncClient(timeout=timeout_seconds, trust_env=False)
        self.answers = True
        """Whether the endpoint has answered so far."""

    async def aclose(self) -> None:
        await self._http.aclose()

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> TokenArray | None:
        """The token ids of a chat prompt; None if the endpoint does not provide them."""
        body: dict[str, Any] = {"messages": list(messages)}
        if tools:
            body["tools"] = list(tools)
        return await self._ask(body)

    async def text(self, text: str) -> TokenArray | None:
        """The token ids of a text; None if the endpoint does not provide them."""
        return await self._ask({"prompt": text})

    async def _ask(self, body: dict[str, Any]) -> TokenArray | None:
        if not self.answers:
            return None
        try:
            response = await self._http.post(
                self._url, json={"model": self._model, **body}, headers=self._headers
            )
            if response.status_code == 200:
                return np.asarray(response.json()["tokens"], dtype=np.uint32)
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            pass
        self.answers = False
        return None
