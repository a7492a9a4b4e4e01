"""Publishes a worker's donors as events. Only this file decides what may leave the worker."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np

from semblend.core.errors import SemBlendError
from semblend.core.namespace import Namespace
from semblend.core.tokens import TokenArray
from semblend.fleet.events.event_values import (
    DonorEvicted,
    DonorRegistered,
    DonorRelocated,
    EventSegment,
    Location,
)
from semblend.fleet.keys import FleetKeys, tenant_key
from semblend.fleet.publish.publisher import Publisher, PublisherOptions, Sayable
from semblend.fleet.publish.sink import EventSink
from semblend.fleet.sealed_blocks import seal_blocks
from semblend.fleet.sketch import DEFAULT_SAMPLING, MARK_TOKENS, check_sampling, sketch

logger = logging.getLogger("semblend.fleet")

HeldDonor: TypeAlias = tuple[str, TokenArray, Namespace | bytes]
"""(donor id, tokens, namespace); a namespace may be given by its secret key alone."""
BlockNames: TypeAlias = Callable[[str], Sequence[int]]
"""The engine's names of a donor's blocks, by donor id; empty if the donor is gone."""
_PRIVATE_PARTS = ("tenant", "template", "cache_salt")


class DonorKeeper(Protocol):
    """Holds a worker's donors; the embedded engine's library is one."""

    def __len__(self) -> int: ...

    def inventory(self) -> Iterable[HeldDonor]:
        """Every donor held now."""
        ...

    def add_listener(self, listener: Any) -> None:
        """Register for `donor_kept(donor_id, tokens, namespace)` and `donor_lost(donor_id)`."""
        ...


class DonorAnnouncer:
    """Tells the fleet what a library gains and loses. Never blocks, never raises."""

    def __init__(
        self,
        library: DonorKeeper,
        sink: EventSink,
        *,
        worker_id: str,
        secret: bytes,
        namespace: Namespace | None = None,
        dp_rank: int = 0,
        sampling: int = DEFAULT_SAMPLING,
        tier: str = "host",
        embed: Callable[[TokenArray], Sequence[float]] | None = None,
        blocks: BlockNames | None = None,
        options: PublisherOptions | None = None,
        plain: bool = False,
        beside: DonorAnnouncer | None = None,
    ) -> None:
        """Start announcing.

        Parameters
        ----------
        namespace
            The worker's own, of any tenant; gateways learn its public parts.
        embed
            Computes a vector of a prompt's meaning, published with it. A vector reveals
            something about a text; without this, no vector leaves the worker.
        blocks
            Names the engine's blocks of a donor that lives in the engine's own cache, as its K/V
            events do. They are published for followers of those events that have the secret.
        plain
            Name the tenant as it is configured: nobody has a secret to hash it with.
        beside
            Says the same elsewhere, and ends with this one.
        """
        self._plain = plain
        self._beside = beside
        self._parts = {} if namespace is None else self._published(namespace, secret)
        self._library = library
        self._secret = secret
        self._sampling = check_sampling(sampling)
        self._here = Location(kind="worker", worker_id=worker_id, dp_rank=dp_rank, tier=tier)
        self._embed = embed
        self._blocks = blocks
        # Donors in a shared store: where they are and what they hold, even after the worker lost
        # them.
        self._shared: dict[str, tuple[Location, HeldDonor]] = {}
        self._lock = threading.Lock()
        self.publisher = Publisher(
            sink,
            worker_id=worker_id,
            dp_rank=dp_rank,
            inventory=self._inventory,
            holding=lambda: len(library),
            namespace={} if namespace is None else public_parts(namespace),
            options=options,
        )
        library.add_listener(self)

    def donor_kept(self, donor_id: str, tokens: TokenArray, namespace: Namespace | bytes) -> None:
        self.publisher.say(partial(self._registered, donor_id, tokens, namespace))

    def donor_lost(self, donor_id: str) -> None:
        """The library lost the donor; a shared store may still have it."""
        with self._lock:
            shared = self._shared.get(donor_id)
        if shared is None:
            self.publisher.say(DonorEvicted(donor_id=donor_id, generation=0))
        else:
            self._relocate(donor_id, replace(shared[0], kind="shared", tier="store"))

    def shared(self, held: HeldDonor, *, backend: str, locator: str) -> None:
        """A donor of the library is now also in a shared store."""
        location = replace(self._here, backend=backend, locator=locator)
        with self._lock:
            self._shared[held[0]] = (location, held)
        self._relocate(held[0], location)

    def withdrawn(self, donor_id: str, *, local: bool) -> None:
        """A donor left the shared store; `local` says whether the library still has it."""
        with self._lock:
            if self._shared.pop(donor_id, None) is None:
                return
        if local:
            self._relocate(donor_id, self._here)
        else:
            self.publisher.say(DonorEvicted(donor_id=donor_id, generation=0))

    def _relocate(self, donor_id: str, location: Location) -> None:
        self.publisher.say(DonorRelocated(donor_id=donor_id, generation=0, new_location=location))

    def close(self) -> None:
        self.publisher.close()
        if self._beside is not None:
            self._beside.close()

    def _published(self, namespace: Namespace, secret: bytes) -> dict[str, Any]:
        tenant = namespace.tenant or "none"
        return published_namespace(
            namespace, tenant=tenant if self._plain else tenant_key(tenant, secret)
        )

    def _inventory(self) -> Iterator[Sayable]:
        local = {held[0]: held for held in self._library.inventory()}
        with self._lock:
            shared = dict(self._shared)
        for held in local.values():
            yield partial(self._registered, *held)
        for donor_id, (location, held) in shared.items():
            if donor_id not in local:
                yield partial(self._registered, *held)
                location = replace(location, kind="shared", tier="store")
            yield DonorRelocated(donor_id=donor_id, generation=0, new_location=location)

    def _registered(
        self, donor_id: str, tokens: TokenArray, namespace: Namespace | bytes
    ) -> DonorRegistered | None:
        parts = self._parts  # the worker's own, where a donor's namespace is a key alone
        try:
            if isinstance(namespace, Namespace):
                keys = FleetKeys.of(namespace, self._secret)
                parts = self._published(namespace, self._secret)
            else:
                keys = FleetKeys.of_root(namespace)
        except SemBlendError:
            return None  # An incomplete namespace matches nothing.
        names: Sequence[int] = ()
        if self._blocks is not None:
            try:
                names = self._blocks(donor_id)
            except Exception as error:
                # Announced without block names it counts as present until we withdraw it ourselves.
                logger.warning("blocks of %s cannot be named: %s", donor_id, error)
            else:
                if not names:
                    return None  # The engine has dropped it; that event follows.
        drawn = sketch(tokens, keys, sampling=self._sampling)
        ends = np.arange(1, drawn.marks.size + 1) * MARK_TOKENS
        return DonorRegistered(
            donor_id=donor_id,
            namespace_id=keys.namespace_id,
            namespace=parts,
            location=self._here,
            token_count=drawn.token_count,
            generation=0,
            segments=tuple(
                EventSegment(start=int(end) - MARK_TOKENS, end=int(end), digest=int(mark))
                for end, mark in zip(ends, drawn.marks, strict=True)
            ),
            sampling=self._sampling,
            hashes=drawn.hashes,
            embedding=() if self._embed is None else tuple(self._embed(tokens)),
            blocks=seal_blocks(names, self._secret) if names else None,
        )


def public_parts(namespace: Namespace) -> dict[str, Any]:
    """The parts that identify model and cache, and say nothing about the caller."""
    parts = namespace.to_dict()
    return {name: value for name, value in parts.items() if name not in _PRIVATE_PARTS}


def published_namespace(namespace: Namespace, *, tenant: str) -> dict[str, Any]:
    """The namespace as listeners read it: `extra` is what their policies go by, without salts.

    `tenant` is its configured name, or what stands for it where a secret is set.
    """
    extra = {
        "tenant": tenant,
        "tenant_key": tenant,
        "template": namespace.template or "none",
    }
    return {**_routing_parts(namespace), "extra": extra}


def _routing_parts(namespace: Namespace) -> dict[str, Any]:
    return {
        "model": namespace.model,
        "tokenizer": namespace.tokenizer,
        "kv_layout": namespace.cache_layout,
        "block_size": namespace.block_size,
        "lora": namespace.adapter,
        "quant": namespace.quantization,
    }
