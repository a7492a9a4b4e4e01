"""A worker's donors as events: what may leave the worker is made here, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np

from semblend.core.errors import SemBlendError
from semblend.core.namespace import Namespace
from semblend.core.tokens import TokenArray
from semblend.fleet.events.model import DonorEvicted, DonorRegistered, EventSegment, Location
from semblend.fleet.keys import FleetKeys, tenant_key
from semblend.fleet.publish.publisher import Publisher, PublisherOptions, Sayable
from semblend.fleet.publish.sink import EventSink
from semblend.fleet.sketch import DEFAULT_SAMPLING, MARK_TOKENS, check_sampling, sketch

HeldDonor: TypeAlias = tuple[str, TokenArray, Namespace]
"""(donor id, tokens, namespace)."""
_PRIVATE_PARTS = ("tenant", "template", "cache_salt")


class DonorLibrary(Protocol):
    """Who keeps a worker's donors; the embedded engine's library is one."""

    def __len__(self) -> int: ...

    def inventory(self) -> Iterable[HeldDonor]:
        """Every donor held now."""
        ...

    def add_listener(self, listener: Any) -> None:
        """Have `donor_kept(donor_id, tokens, namespace)` and `donor_lost(donor_id)` called."""
        ...


class DonorAnnouncer:
    """Tells the fleet what a library keeps and loses. Never blocks, never raises."""

    def __init__(
        self,
        library: DonorLibrary,
        sink: EventSink,
        *,
        worker_id: str,
        secret: bytes,
        namespace: Namespace | None = None,
        dp_rank: int = 0,
        sampling: int = DEFAULT_SAMPLING,
        tier: str = "host",
        locate: Callable[[str], Location | None] = lambda donor_id: None,
        options: PublisherOptions | None = None,
    ) -> None:
        """Begin to announce.

        Parameters
        ----------
        namespace
            The worker's own, of any tenant: gateways learn its public parts.
        locate
            Where a donor is, if not with the worker alone.
        """
        self._library = library
        self._secret = secret
        self._sampling = check_sampling(sampling)
        self._here = Location(kind="worker", worker_id=worker_id, dp_rank=dp_rank, tier=tier)
        self._locate = locate
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

    def donor_kept(self, donor_id: str, tokens: TokenArray, namespace: Namespace) -> None:
        """The library keeps a donor."""
        self.publisher.say(partial(self._registered, donor_id, tokens, namespace))

    def donor_lost(self, donor_id: str) -> None:
        """The library no longer has it."""
        self.publisher.say(DonorEvicted(donor_id=donor_id, generation=0))

    def close(self) -> None:
        """Say goodbye and stop."""
        self.publisher.close()

    def _inventory(self) -> Iterator[Sayable]:
        for held in list(self._library.inventory()):
            yield partial(self._registered, *held)

    def _registered(
        self, donor_id: str, tokens: TokenArray, namespace: Namespace
    ) -> DonorRegistered | None:
        try:
            keys = FleetKeys.of(namespace, self._secret)
        except SemBlendError:
            return None  # An incomplete namespace matches nothing.
        drawn = sketch(tokens, keys, sampling=self._sampling)
        ends = np.arange(1, drawn.marks.size + 1) * MARK_TOKENS
        return DonorRegistered(
            donor_id=donor_id,
            namespace_id=keys.namespace_id,
            namespace=published_namespace(namespace, self._secret),
            location=self._locate(donor_id) or self._here,
            token_count=drawn.token_count,
            generation=0,
            segments=tuple(
                EventSegment(start=int(end) - MARK_TOKENS, end=int(end), digest=int(mark))
                for end, mark in zip(ends, drawn.marks, strict=True)
            ),
            sampling=self._sampling,
            hashes=drawn.hashes,
        )


def public_parts(namespace: Namespace) -> dict[str, Any]:
    """The parts that say which model and cache it is, and nothing about who asks."""
    parts = namespace.to_dict()
    return {name: value for name, value in parts.items() if name not in _PRIVATE_PARTS}


def published_namespace(namespace: Namespace, secret: bytes) -> dict[str, Any]:
    """The namespace as other routers read it; tenants under a keyed name, salts not at all."""
    return {
        "model": namespace.model,
        "tokenizer": namespace.tokenizer,
        "kv_layout": namespace.cache_layout,
        "block_size": namespace.block_size,
        "lora": namespace.adapter,
        "quant": namespace.quantization,
        "extra": {"tenant_key": tenant_key(namespace.tenant or "none", secret)},
    }
