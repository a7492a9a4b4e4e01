"""Fetches Prometheus pages into a snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import httpx

from sembench.errors import EndpointError, ResultError
from sembench.live.prometheus import SNAPSHOT_VERSION, parse
from sembench.provenance import utc_now


async def snapshot(urls: Iterable[str], *, timeout_seconds: float = 15.0) -> dict[str, Any]:
    """All counters of all endpoints, now.

    Raises
    ------
    EndpointError
        If a page cannot be read: a partial snapshot would give a wrong window.
    """
    endpoints: dict[str, dict[str, float]] = {}
    async with httpx.AsyncClient(timeout=timeout_seconds, trust_env=False) as http:
        for url in urls:
            try:
                response = await http.get(url)
                response.raise_for_status()
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise EndpointError(f"GET {url}: {type(error).__name__} {error}") from error
            try:
                samples = parse(response.text)
            except ResultError as error:
                raise EndpointError(f"GET {url}: {error}") from error
            if not samples:
                raise EndpointError(f"GET {url}: the answer has no Prometheus samples")
            endpoints[url] = {sample.key: sample.value for sample in samples}
    return {"snapshot_version": SNAPSHOT_VERSION, "taken_at_utc": utc_now(), "endpoints": endpoints}
