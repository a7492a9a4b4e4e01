"""Turns a request body into a placement. If anything fails here, the request is still sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from semblend.core.errors import RequestFieldError, SemBlendError
from semblend.core.namespace import Namespace, salt_part
from semblend.core.settings import DonorSharing, Settings
from semblend.core.tokens import TokenArray
from semblend.fleet.directory.answers import Found
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.ranks import RankName
from semblend.fleet.keys import FleetKeys
from semblend.fleet.placement.chooser import Placement, WorkerLoad, choose
from semblend.fleet.residency.live_donors import LiveDonors
from semblend.fleet.sketch import sketch
from semblend.integration.isolation import by_extra_key, by_salt
from semblend.integration.vllm import namespaces as vllm_namespaces
from semblend.serve.gateway.options import GatewayOptions
from semblend.serve.gateway.worker_pool import WorkerPool
from semblend.serve.openai.chat_messages import Message, Tool
from semblend.serve.openai.prompts import PromptEncoder
from semblend.serve.watch.json_logs import log

_MAX_NAMESPACES = 4
"""Maximum number of distinct models or caches a prompt is sketched for."""
_OTHER_ENGINES = ("segments:", "trtllm:", "slots:")
"""How the cache layouts of engines begin that are not ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A placement and what it took to find it."""

    placement: Placement
    prompt_tokens: int
    lookup_s: float


class Placer:
    """Places request bodies with a local directory and the models' own tokenizer."""

    def __init__(
        self,
        directory: Directory,
        pool: WorkerPool,
        encoder: PromptEncoder,
        *,
        options: GatewayOptions,
        settings: Settings,
        secret: bytes,
        caches: LiveDonors | None = None,
    ) -> None:
        """`caches` knows what the engines' own caches hold, if their K/V events are followed."""
        self._directory = directory
        self._pool = pool
        self._encoder = encoder
        self._options = options
        self._settings = settings
        self._secret = secret
        self._caches = caches

    async def place(
        self,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        *,
        tenant: str | None,
        principal: str | None = None,
    ) -> Placed:
        """Place a tenant's request; without evidence if the body cannot be read.

        `tenant` and `principal` are the caller as identified by the gate; None is the fleet's
        default tenant, and everybody in it.
        """
        started = time.perf_counter()
        found, size = Found(), 1
        resident: Mapping[RankName, int] = {}
        try:
            tokens = await self._tokens(body)
            size = len(tokens)
            started = time.perf_counter()
            namespaces = self._namespaces(body, headers, tenant, principal)
            found = await asyncio.to_thread(self._look_up, tokens, namespaces)
            resident = await asyncio.to_thread(self._resident, tokens, body, tenant)
        except SemBlendError:
            pass  # The worker will report what is wrong with it.
        except Exception as error:
            log("placement_failed", error=error)
        placement = choose(
            max(1, size),
            found,
            [self._with_cache(load, resident) for load in self._pool.loads()],
            self._options.cost,
            can_reuse=self._options.can_reuse,
            can_transfer=self._options.can_transfer,
        )
        return Placed(
            placement=placement, prompt_tokens=size, lookup_s=time.perf_counter() - started
        )

    def _resident(
        self, tokens: TokenArray, body: Mapping[str, Any], tenant: str | None
    ) -> Mapping[RankName, int]:
        """Exact prefixes according to the engines' own events.

        An engine knows no tenants, only salts. Without a salt its blocks may be another
        tenant's, and the routing of a request must not reveal that.
        """
        salt = _text(body, "cache_salt")
        if self._caches is None or (tenant is not None and not salt):
            return {}
        return self._caches.resident(tokens, salt=salt, model=_text(body, "model") or "")

    def _with_cache(self, load: WorkerLoad, resident: Mapping[RankName, int]) -> WorkerLoad:
        tokens = resident.get((load.worker_id, load.dp_rank))
        if tokens is None:
            return load
        # Dynamo's router follows the same events, so its own choice needs no pin.
        known = tokens if self._options.pin_header else load.prefix_tokens
        return replace(load, resident_tokens=tokens, prefix_tokens=known)

    async def _tokens(self, body: Mapping[str, Any]) -> TokenArray:
        if "messages" in body:
            messages = [
                Message.model_validate({n: m[n] for n in Message.model_fields if n in m})
                for m in body["messages"]
            ]
            offered = body.get("tools") if body.get("tool_choice") != "none" else None
            tools = [Tool.model_validate(tool) for tool in offered or ()]
            return await self._encoder.chat(messages, tools, body.get("chat_template_kwargs"))
        if "prompt" not in body:
            raise RequestFieldError("prompt", "this field is required")
        # Of several prompts, place by the longest: it gains most.
        return max(await self._encoder.completions(body["prompt"]), key=len)

    def _look_up(self, tokens: TokenArray, namespaces: Sequence[Namespace]) -> Found:
        best = Found()
        for namespace in namespaces:
            keys = FleetKeys.of(namespace, self._secret)
            drawn = sketch(tokens, keys, sampling=self._settings.fleet_sampling)
            found = self._directory.lookup(drawn, keys.namespace_id)
            best = Found(
                holdings=(*best.holdings, *found.holdings), shared=best.shared or found.shared
            )
        return best

    def _namespaces(
        self,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        tenant: str | None,
        principal: str | None,
    ) -> list[Namespace]:
        """The namespaces the request would have at the workers, one per kind of worker."""
        template = headers.get("x-chat-template-id") or self._settings.donor_template
        salt, extra_key = _text(body, "cache_salt"), _text(body, "extra_key")
        kinds: dict[str, Namespace] = {}
        for parts in self._directory.namespace_kinds():
            try:
                namespace = Namespace(
                    **parts,
                    tenant=tenant or self._settings.donor_tenant,
                    template=template,
                    cache_salt=_salt_part(salt, extra_key, str(parts.get("cache_layout"))),
                )
                if self._knows_principals(parts):
                    namespace = namespace.for_principal(principal)
                kinds.setdefault(namespace.key().hex(), namespace)
            except (SemBlendError, TypeError):
                continue  # A worker of another version; its donors cannot be compared.
        return list(kinds.values())[:_MAX_NAMESPACES]

    def _knows_principals(self, parts: Mapping[str, Any]) -> bool:
        """Whether a worker keeps principals apart: ours read the keys, others know only salts."""
        ours = not str(parts.get("cache_layout")).startswith(_OTHER_ENGINES)
        return ours and self._settings.share_donors is not DonorSharing.TENANT


def _text(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    return value if isinstance(value, str) else None


def _salt_part(salt: str | None, extra_key: str | None, cache_layout: str) -> str:
    """The part of a namespace that isolates requests, as the worker names it.

    Each adapter hashes it in its own way; the embedded engine only marks that there is one.
    """
    if cache_layout.startswith("segments:"):
        return vllm_namespaces.isolation_of(salt)
    if cache_layout.startswith("trtllm:"):
        return by_salt(salt)
    if cache_layout.startswith("slots:"):
        # SGLang's API makes none of an empty key before its tree sees it.
        return by_extra_key(extra_key or None, salt)
    return salt_part(salt)
