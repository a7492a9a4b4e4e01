"""Checks what an endpoint serves and reports before anything is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

from sembench.errors import EndpointError
from sembench.live.prompt import EngineClient, Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What the check found out about an endpoint."""

    engine: str
    base_url: str
    models: tuple[str, ...]
    reports: dict[str, bool]
    """Which of the facts a benchmark needs the endpoint reports per request."""
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "base_url": self.base_url,
            "models": list(self.models),
            "reports": self.reports,
            "warnings": list(self.warnings),
            "ok": True,
        }


async def verify(
    *,
    engine: str,
    base_url: str,
    client: EngineClient,
    expect_model: str | None,
    timeout_seconds: float = 15.0,
) -> Verified:
    """Check an endpoint.

    Raises
    ------
    EndpointError
        If it cannot be reached, serves another model, or does not stream an answer.
    """
    root = base_url.rstrip("/").removesuffix("/v1")
    models, warnings = await _models(engine, root, timeout_seconds)
    if expect_model and models and not any(_same(expect_model, model) for model in models):
        raise EndpointError(
            f"{base_url} serves {', '.join(models)}, not {expect_model!r}; "
            f"pass the right --model, or --skip-verify"
        )
    reply = await client.complete(
        Prompt(request_id="sembench-verify", text="Say ready. Are you ready?", max_tokens=2)
    )
    if not reply.ok:
        raise EndpointError(f"{base_url} does not stream an answer: {reply.error}")
    reports = {
        "prompt_tokens": reply.prompt_tokens is not None,
        "cached_tokens": reply.cached_tokens is not None,
        "semantic_reuse": reply.reused_tokens is not None,
        "route": reply.route is not None,
        "worker": reply.worker_id is not None,
        "takes_cache_salt": await _takes_salt(client),
    }
    if not reports["cached_tokens"]:
        warnings.append(
            "no cached_tokens in the answers: backend-confirmed metrics will be absent, and "
            "gates on them fail (vLLM: --enable-prompt-tokens-details)"
        )
    return Verified(
        engine=engine,
        base_url=base_url,
        models=tuple(models),
        reports=reports,
        warnings=tuple(warnings),
    )


async def _takes_salt(client: EngineClient) -> bool:
    """Whether a request with a `cache_salt` is answered; cold arms show if it is honored."""
    reply = await client.complete(
        Prompt(
            request_id="sembench-verify-salt",
            text="Say ready. Are you ready?",
            max_tokens=2,
            cache_salt="sembench-verify",
        )
    )
    return reply.ok


async def served_models(engine: str, base_url: str, timeout_seconds: float) -> list[str]:
    """The models an endpoint lists; empty if it lists none."""
    models, _ = await _models(engine, base_url.rstrip("/").removesuffix("/v1"), timeout_seconds)
    return models


async def _models(engine: str, root: str, timeout_seconds: float) -> tuple[list[str], list[str]]:
    path = "/get_model_info" if engine == "sglang" else "/v1/models"
    try:
        async with httpx.AsyncClient(timeout=timeout_seconds, trust_env=False) as http:
            response = await http.get(root + path)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise EndpointError(f"{root}{path}: {type(error).__name__} {error}") from error
    if response.status_code != 200:
        return [], [f"{path} answers HTTP {response.status_code}: the model could not be checked"]
    try:
        body = response.json()
        if engine == "sglang":
            return [str(body["model_path"])], []
        return [str(entry["id"]) for entry in body["data"]], []
    except (ValueError, KeyError, TypeError) as error:
        raise EndpointError(f"{root}{path}: not the expected JSON ({error!r})") from error


def _same(expected: str, served: str) -> bool:
    """Whether names are equal, or one is the last part of the other's path."""
    return expected == served or expected.rstrip("/").split("/")[-1] == served.split("/")[-1]
