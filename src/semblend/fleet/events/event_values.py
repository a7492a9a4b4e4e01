"""The events a worker publishes, as values.

Each event of a worker's rank has the previous id plus one. A directory that has seen all
ids knows the rank's donors exactly; a missing id means it does not.
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
    """The transport's name, if a copy is in a shared store."""
    locator: str = ""
    """The name of the donor's manifest there; a worker's donor may have one too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSegment:
    """Tokens [start, end) of a donor, following everything before them."""

    start: int
    end: int
    digest: int
    """Keyed digest of the prompt up to `end`; 64 bits."""
    block_hashes: tuple[int | str, ...] = ()
    """The engine's own names of the blocks that hold it; empty if it holds none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedBlocks:
    """The engine's names of all of a donor's blocks, readable with the fleet's secret."""

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
    """A vector of the prompt's meaning, if the worker publishes one."""
    blocks: SealedBlocks | None = None
    """If the donor lives in the engine's own cache: the blocks it consists of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DonorEvicted:
    """The rank no longer holds the donor."""

    donor_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DonorsPurged:
    """The rank no longer holds any donor of a namespace, or none at all."""

    generation: int
    namespace_id: str | None = None
    """None: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationReset:
    """The rank starts over: nothing it said before is valid."""

    generation: int
    namespace: Mapping[str, Any] = field(default_factory=dict)
    """The worker's namespace without tenant, template and salt, for gateways; may be empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DonorRelocated:
    """The donor's K/V has moved."""

    donor_id: str
    generation: int
    new_location: Location


EventData: TypeAlias = (
    DonorRegistered | DonorEvicted | DonorsPurged | GenerationReset | DonorRelocated
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One statement by one rank of one worker."""

    event_id: int
    worker_id: str
    dp_rank: int
    data: EventData


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A rank is alive and has come this far. Not part of the log."""

    worker_id: str
    dp_rank: int
    generation: int
    last_event_id: int
