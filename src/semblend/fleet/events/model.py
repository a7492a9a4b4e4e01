"""The events a worker publishes, as values.

Every event of a worker's rank has an id one above the last one's. A directory that
has seen all ids knows the rank's donors exactly; a missing id means it does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from semblend.discovery.fingerprints import HashArray

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where a donor's K/V is: with a worker's rank, or in a store that workers share."""

    kind: str = "worker"
    """"worker" or "shared"."""
    tier: str = "host"
    worker_id: str = ""
    dp_rank: int = 0
    backend: str = ""
    """The transport's name, where a copy is in a shared store."""
    locator: str = ""
    """The name of the donor's manifest there; a worker's donor may have one, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSegment:
    """Tokens [start, end) of a donor behind everything before them."""

    start: int
    end: int
    digest: int
    """Keyed digest of the prompt up to `end`; 64 bits."""
    block_hashes: tuple[int | str, ...] = ()
    """The engine's own names of the blocks that hold it; empty where it holds none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedBlocks:
    """The engine's names of all blocks of a donor, for whoever has the fleet's secret."""

    scheme: str
    nonce: bytes
    names: bytes = field(repr=False)


def _no_hashes() -> HashArray:
    return np.empty(0, dtype=np.uint64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DonorRegistered:
    """A rank holds this donor's K/V."""

    donor_id: str
    namespace_id: str
    token_count: int
    generation: int
    location: Location = field(default_factory=Location)
    namespace: Mapping[str, Any] = field(default_factory=dict)
    """Published parts of the namespace, for people and other tools; never compared."""
    segments: tuple[EventSegment, ...] = ()
    sampling: int = 1
    hashes: HashArray = field(default_factory=_no_hashes)
    """Sampled keyed fingerprints, shape [kept]."""
    embedding: tuple[float, ...] = ()
    """A vector of the prompt's meaning, where the worker was told to publish one."""
    blocks: SealedBlocks | None = None
    """Where the donor is the engine's own cache: the blocks it consists of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DonorEvicted:
    """The rank no longer holds the donor."""

    donor_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DonorsPurged:
    """The rank no longer holds any donor of a namespace, or any at all."""

    generation: int
    namespace_id: str | None = None
    """None: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationReset:
    """The rank starts anew: nothing said before holds."""

    generation: int
    namespace: Mapping[str, Any] = field(default_factory=dict)
    """The worker's namespace without tenant, template and salt, for gateways; may be empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DonorRelocated:
    """The donor's K/V is somewhere else now."""

    donor_id: str
    generation: int
    new_location: Location


EventData: TypeAlias = (
    DonorRegistered | DonorEvicted | DonorsPurged | GenerationReset | DonorRelocated
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One statement of one rank of one worker."""

    event_id: int
    worker_id: str
    dp_rank: int
    data: EventData


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A rank is alive, and this is how far it has come. Not part of the log."""

    worker_id: str
    dp_rank: int
    generation: int
    last_event_id: int
