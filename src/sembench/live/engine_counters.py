"""SemBlend's counters inside an engine, read from the engine's Prometheus page.

vLLM's streams say nothing about reuse, so there the counters are the confirmation: with
one request at a time, any increase belongs to that request. The counters also say when a
donor is ready, because it is registered a moment after its answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sembench.errors import ResultError
from sembench.live.prometheus import MetricSample, parse
from sembench.live.reply import Reply

POLL_SECONDS = 0.05
SETTLE_SECONDS = 2.0
"""How long the counters of an answered request may take to appear."""
QUIET_SECONDS = 0.5
"""After this long without a new donor, no further donor is expected."""
PREFIXES = ("vllm:semblend_", "sglang:semblend_", "semblend:")
_DONORS = ("donors_registered", "donor_registrations")
_UNDONE = ("captures_skipped", "donors_skipped")
_STAGES = {"materialized": "reused"}
"""Our own server's label for what other engines call reused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """SemBlend's counters at one moment, summed over the pages."""

    requests: int = 0
    """Finished requests."""
    donors: int = 0
    """Donors registered since the start, or dropped because a queue was full."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Prompt tokens by source: exact, reused, recomputed, computed, and any others."""


def counts_of(samples: Sequence[MetricSample]) -> Counts | None:
    """SemBlend's counters among a page's samples; None if it has none."""
    requests = donors = 0
    tokens: dict[str, int] = {}
    found = False
    for sample in samples:
        name = _own_name(sample.name)
        if name is None:
            continue
        if name == "tokens":
            found = True
            label = sample.labels.get("source") or sample.labels.get("stage") or ""
            source = _STAGES.get(label, label)
            tokens[source] = tokens.get(source, 0) + int(sample.value)
        elif name == "requests":
            requests += int(sample.value)
        elif name in _DONORS or name in _UNDONE:
            donors += int(sample.value)
    return Counts(requests=requests, donors=donors, tokens=tokens) if found else None


def _own_name(name: str) -> str | None:
    """A counter's name without engine prefix and suffix; None if it is not ours."""
    for prefix in PREFIXES:
        if name.startswith(prefix) and name.endswith("_total"):
            return name.removeprefix(prefix).removesuffix("_total")
    return None


class EngineCounters:
    """Reads the metrics pages of the engines behind one endpoint."""

    def __init__(
        self, urls: Sequence[str], *, api_key: str = "", timeout_seconds: float = 10.0
    ) -> None:
        import httpx

        self._urls = tuple(dict.fromkeys(urls))
        self._errors: type[Exception] = httpx.HTTPError
        self._http = httpx.AsyncClient(
            timeout=timeout_seconds,
            trust_env=False,
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def read(self) -> Counts | None:
        """The counters now; None if no page has them or a page cannot be read."""
        pages: list[MetricSample] = []
        for url in self._urls:
            try:
                response = await self._http.get(url)
                if response.status_code != 200:
                    return None
                pages.extend(parse(response.text))
            except (self._errors, ResultError):
                return None
        return counts_of(pages)

    @staticmethod
    def page_of(base_url: str) -> str:
        """The URL of an endpoint's counters."""
        return base_url.rstrip("/").removesuffix("/v1") + "/metrics"

    async def wait_for_donors(self, before: Counts, donors: int, limit_seconds: float) -> int:
        """Wait until `donors` more are registered or no more come; return how many did.

        Not every prompt becomes a donor (too short, already held, itself reused). So the wait
        also ends once all requests are done and no donor has come for a while.
        """
        started = changed = time.monotonic()
        known = 0
        while True:
            now = await self.read()
            came = 0 if now is None else now.donors - before.donors
            if came > known:
                known, changed = came, time.monotonic()
            at = time.monotonic()
            if came >= donors or at - started >= limit_seconds:
                return known
            ended = now is not None and now.requests - before.requests >= donors
            if ended and at - changed >= QUIET_SECONDS:
                return known
            await asyncio.sleep(POLL_SECONDS)

    async def confirm(self, before: Counts, reply: Reply) -> Reply:
        """Add the engine's counts to a `reply` that reports none itself.

        Only if exactly one request has finished since `before`; the increase then belongs to
        that request.
        """
        if reply.reused_tokens is not None or not reply.ok:
            return reply
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            now = await self.read()
            if now is not None and now.requests > before.requests:
                break
            if time.monotonic() >= deadline:
                return reply
            await asyncio.sleep(POLL_SECONDS)
        grown = {
            source: amount - before.tokens.get(source, 0) for source, amount in now.tokens.items()
        }
        if now.requests - before.requests != 1 or min(grown.values(), default=0) < 0:
            return reply
        exact, reused = grown.get("exact", 0), grown.get("reused", 0)
        continued = grown.get("continued")
        return replace(
            reply,
            exact_tokens=exact,
            reused_tokens=reused,
            continued_tokens=continued,
            candidate_tokens=grown.get("reusable"),
            cached_tokens=exact + reused + (continued or 0),
            confirmed_by="counters",
        )
