"""The endpoint under test: its flags, its client, and what readers must know about it."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx

from benchmarks.suite.backend import Backend, describe, this_machine
from sembench.errors import EndpointError, SemBenchError
from sembench.live.engine_counters import Counts, EngineCounters
from sembench.live.identity import RequestIdentity
from sembench.live.openai_client import OpenAIClient
from sembench.live.prompt import Prompt
from sembench.live.reply import Reply
from sembench.live.verify import served_models, verify

ROOM = 192
"""Tokens left for instruction, question and chat template beside a document."""
DONOR_WAIT_SECONDS = 5.0


def parser(description: str, *, endpoint: bool = True) -> argparse.ArgumentParser:
    """The flags every benchmark of the suite has; `endpoint`: those that name the one asked."""
    flags = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    if endpoint:
        flags.add_argument("--base-url", required=True, help="OpenAI-compatible endpoint")
        flags.add_argument("--model", help="model to ask for; left out, the first one served")
    flags.add_argument("--api-key", default=os.environ.get("SEMBENCH_API_KEY", ""))
    flags.add_argument("--tenant", default="", help="x-tenant-id, if the endpoint accepts it")
    flags.add_argument("--reset-url", action="append", default=[], help="POST here to empty caches")
    flags.add_argument("--samples", type=positive, default=3, help="comparisons per case")
    flags.add_argument("--max-tokens", type=positive, default=8, help="maximum tokens per answer")
    flags.add_argument(
        "--post-donor-delay-ms",
        type=float,
        default=500.0,
        help="pause after donors, because engines register them off the request path",
    )
    flags.add_argument("--timeout-seconds", type=float, default=900.0)
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--backend", help="name of the backend, for the report")
    flags.add_argument("--cache-configuration", help="its cache configuration, for the report")
    flags.add_argument("--hardware", help="its hardware, for the report")
    flags.add_argument("--min-speedup", type=float, help="target speed-up of every hit")
    flags.add_argument("--json", action="store_true", help="print one JSON object")
    flags.add_argument("--output", type=Path, help="file to write the JSON to")
    return flags


@dataclass(slots=True)
class Endpoint:
    """A verified endpoint. Each `salt` is a separate cache; a reset URL empties all."""

    flags: argparse.Namespace
    client: OpenAIClient
    model: str
    reports: dict[str, bool]
    backend: Backend
    counters: EngineCounters | None = None
    """SemBlend's own counters, where the endpoint shows them: they tell exact from reused."""
    limit: int | None = None
    """Tokens a request may have, where the endpoint says so."""
    _before: Counts | None = None
    """The counters before the first request since caches were emptied or donors awaited."""
    _served: int = 0
    _numbers: Any = field(default_factory=itertools.count)

    @classmethod
    async def open(cls, flags: argparse.Namespace) -> Self:
        """Find the model and check that the endpoint answers."""
        model = flags.model
        if not model:
            models = await served_models("gateway", flags.base_url, 30.0)
            if not models:
                raise EndpointError(f"{flags.base_url} does not list its models; give --model")
            model = models[0]
        client = OpenAIClient(
            base_url=flags.base_url,
            model=model,
            caller=RequestIdentity(tenant=flags.tenant, api_key=flags.api_key),
            timeout_seconds=flags.timeout_seconds,
        )
        try:
            found = await verify(
                engine="gateway",
                base_url=flags.base_url,
                client=client,
                expect_model=None,
                timeout_seconds=30.0,
            )
        except BaseException:
            await client.close()
            raise
        counters = EngineCounters([EngineCounters.page_of(flags.base_url)], api_key=flags.api_key)
        if await counters.read() is None:
            await counters.aclose()
            counters = None
        return cls(
            flags=flags,
            client=client,
            model=model,
            reports=found.reports,
            backend=await describe(flags.base_url),
            counters=counters,
            limit=await context_limit(flags.base_url, model),
        )

    async def close(self) -> None:
        await self.client.close()
        if self.counters is not None:
            await self.counters.aclose()

    def fitting(self, lengths: Sequence[int]) -> list[int]:
        """The lengths that the model has room for; the others are named on stderr.

        Raises
        ------
        EndpointError
            If none is left.
        """
        most = None if self.limit is None else self.limit - self.flags.max_tokens - ROOM
        fitting = [length for length in lengths if most is None or length <= most]
        for length in lengths:
            if length not in fitting:
                print(
                    f"{length} tokens are left out: {self.model} takes {self.limit}",
                    file=sys.stderr,
                )
        if not fitting:
            raise EndpointError(
                f"{self.model} takes {self.limit} tokens, less than every length asked for; "
                f"give a length of at most {most}"
            )
        return fitting

    def new_salt(self, case: str) -> str:
        """A fresh salt, which means an empty cache."""
        return f"suite-{os.getpid()}-{self.flags.seed}-{case}-{next(self._numbers)}"

    async def empty(self) -> None:
        """Empty all caches, where there is a way to; else salts keep cases apart."""
        self._before, self._served = None, 0
        for url in self.flags.reset_url:
            await self.client.post(url)

    async def settle(self) -> None:
        """Wait until the donors just served can be found."""
        before, served = self._before, self._served
        self._before, self._served = None, 0
        if self.counters is not None and before is not None:
            await self.counters.wait_for_donors(before, served, DONOR_WAIT_SECONDS)
        else:
            await asyncio.sleep(self.flags.post_donor_delay_ms / 1000.0)

    async def ask(
        self,
        text: str = "",
        *,
        salt: str,
        messages: tuple[tuple[str, str], ...] = (),
        max_tokens: int | None = None,
        top_logprobs: int = 0,
    ) -> Reply:
        """Send one request.

        Raises
        ------
        EndpointError
            If it is not answered: a table with gaps would mislead.
        """
        before = None if self.counters is None else await self.counters.read()
        self._before, self._served = self._before or before, self._served + 1
        reply = await self.client.complete(
            Prompt(
                request_id=f"suite-{next(self._numbers)}",
                text=text,
                messages=messages,
                max_tokens=max_tokens or self.flags.max_tokens,
                cache_salt="" if self.flags.reset_url else salt,
                top_logprobs=top_logprobs,
            )
        )
        if not reply.ok:
            raise EndpointError(f"{self.flags.base_url}: {reply.error}")
        if self.counters is not None and before is not None:
            return await self.counters.confirm(before, reply)
        return reply

    def context(self, data: str) -> dict[str, Any]:
        """What every figure depends on."""
        local = any(host in self.flags.base_url for host in ("localhost", "127.0.0.1"))
        reported = [name for name, said in self.reports.items() if said]
        name = self.flags.backend or self.backend.name
        return {
            "model": self.model,
            "backend": f"{name} at {self.flags.base_url}" if name else self.flags.base_url,
            "cache_configuration": self.flags.cache_configuration
            or self.backend.caches
            or f"not stated; answers report {', '.join(reported) or 'nothing'}",
            "hardware": self.flags.hardware
            or (f"this machine: {this_machine()}" if local else "not stated"),
            "data": data,
            "isolation": "reset" if self.flags.reset_url else "cache_salt",
            "backend_reports_semantic_reuse": self.reports["semantic_reuse"]
            or self.counters is not None,
        }


async def context_limit(base_url: str, model: str) -> int | None:
    """Tokens a request to `model` may have, as `/v1/models` says; None where it does not."""
    url = base_url.rstrip("/").removesuffix("/v1") + "/v1/models"
    try:
        async with httpx.AsyncClient(timeout=30.0, trust_env=False) as http:
            served = (await http.get(url)).json()["data"]
        stated = next((each for each in served if each.get("id") == model), {})
        limit = stated.get("max_model_len") or stated.get("context_length")
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return limit if isinstance(limit, int) and limit > 0 else None


def run(main: Any) -> int:
    """Run an async main and turn typed errors into one line."""
    try:
        return int(asyncio.run(main))
    except SemBenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {number}")
    return number
