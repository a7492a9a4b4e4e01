"""A server with an OpenAI-compatible API and our connector, asked over its URL.

Prompts go out as token ids, so the server's own template plays no part. A plain URL gives no way
to the workers: there is no table of depth drift, and what the server does not say about itself
stands in the certificate as not told.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

from semblend.core.errors import MissingExtraError, ServerError
from semblend.quality.seam import MeasuredFacts
from semblend.quality.served.asking import TOP, ServedReply, ServedRequest
from semblend.quality.served.comparing import METHOD

BATCH = 4
TIMEOUT_S = 600.0
SETTLE_S = 1.0
"""A server keeps prompts beside its other work and tells nobody when."""
NOT_TOLD = "not told by the server"
LEFT_OUT = (
    "the table of depth drift, and with it policies that shift depths",
    "the share of the price that a policy's probe computes",
    "quantisation, K/V format and speculation, which the server does not tell",
)
_ID = "token_id:"


class HttpServer:
    """A running server in mode `segmented_experimental`."""

    forgets_prefixes = False
    batch = BATCH

    def __init__(
        self,
        url: str,
        *,
        model: str,
        fingerprint: str,
        dtype: str,
        architecture: str,
        tokenizer: Any,
        key: str = "",
    ) -> None:
        """Say hello.

        Raises
        ------
        ServerError
            If nobody answers there, or something that serves no model.
        """
        try:
            httpx = import_module("httpx")
        except ImportError as error:
            raise MissingExtraError(
                package="httpx", extra="live", purpose="measuring a server"
            ) from error
        self._errors: Any = httpx.HTTPError
        self._url = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client: Any = httpx.Client(timeout=TIMEOUT_S, headers=headers)
        self._pool = ThreadPoolExecutor(BATCH)
        self.tokenizer = tokenizer
        served = self._get("/v1/models").get("data") or []
        if not served:
            raise ServerError(f"{self._url}: no model is served there")
        self._model = str(served[0]["id"])
        self.most_tokens = int(served[0].get("max_model_len") or 0)
        self.facts = MeasuredFacts(
            engine="server",
            version=str(self._get("/version", needed=False).get("version", NOT_TOLD)),
            model=model,
            fingerprint=fingerprint,
            dtype=dtype,
            architecture=architecture,
            quantisation=NOT_TOLD,
            kv_format=NOT_TOLD,
            speculation=NOT_TOLD,
            hardware=NOT_TOLD,
            method=METHOD,
            left_out=LEFT_OUT,
        )

    def ask(self, questions: Sequence[ServedRequest]) -> list[ServedReply]:
        """Several at a time."""
        return list(self._pool.map(self._ask, questions))

    def settle(self) -> None:
        """Wait a while."""
        time.sleep(SETTLE_S)

    def forget_prefixes(self) -> None:
        """Not over a plain URL: every policy has donors under a salt of its own."""

    def close(self) -> None:
        """Hang up; the server goes on."""
        self._pool.shutdown()
        self._client.close()

    def _ask(self, question: ServedRequest) -> ServedReply:
        body = {
            "model": self._model,
            "prompt": question.tokens.tolist(),
            "max_tokens": question.most,
            "temperature": 0.0,
            "logprobs": TOP,
            "return_tokens_as_token_ids": True,
            "cache_salt": _salt_of(question.salt),
            "kv_transfer_params": {"semblend": question.hints},
        }
        return reply_of(self._said("POST", "/v1/completions", json=body))

    def _get(self, path: str, *, needed: bool = True) -> Mapping[str, Any]:
        try:
            return self._said("GET", path)
        except ServerError:
            if needed:
                raise
            return {}

    def _said(self, method: str, path: str, **options: Any) -> Mapping[str, Any]:
        try:
            response = self._client.request(method, self._url + path, **options)
            if response.status_code >= 400:
                detail = response.text[:300]
                raise ServerError(f"{self._url}{path}: {response.status_code}: {detail}")
            said = response.json()
        except (self._errors, ValueError) as error:
            raise ServerError(f"{self._url}{path}: {error}") from error
        if not isinstance(said, dict):
            raise ServerError(f"{self._url}{path}: an object expected")
        return said


def _salt_of(name: str) -> str:
    """A salt as vLLM's server takes it: short, and without slashes."""
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


def reply_of(body: Mapping[str, Any]) -> ServedReply:
    """What a completion says.

    Raises
    ------
    ServerError
        If it is none.
    """
    try:
        (choice,) = body["choices"]
        given = choice.get("logprobs") or {}
        return ServedReply(
            tokens=tuple(str(t).removeprefix(_ID) for t in given.get("tokens") or ()),
            text=str(choice["text"]),
            top=tuple(
                {str(token).removeprefix(_ID): float(value) for token, value in place.items()}
                for place in given.get("top_logprobs") or ()
            ),
            said=(body.get("kv_transfer_params") or {}).get("semblend") or {},
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ServerError(f"not a completion: {error!r}") from error
