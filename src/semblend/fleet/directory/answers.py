"""A directory's answers."""

from __future__ import annotations

from dataclasses import dataclass

from semblend.fleet.directory.index import SharedDonor


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHolding:
    """What one worker's rank holds of a prompt."""

    worker_id: str
    dp_rank: int
    covered_tokens: int
    prefix_tokens: int
    donor_key: int
    donor_covered_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a directory knows of a prompt."""

    holdings: tuple[WorkerHolding, ...] = ()
    """What the ranks hold themselves, largest coverage first."""
    shared: SharedDonor | None = None
    """The donor in a shared store that covers most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryStats:
    """A snapshot for metrics."""

    donors: int
    ranks: int
    suspended_ranks: int
    ranks_in_doubt: int
    index_bytes: int
    events: int
    duplicates: int
    gaps: int
    refused_donors: int
    dropped_postings: int
