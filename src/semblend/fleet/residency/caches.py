"""The engine caches a gateway follows, started, queried and stopped together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from semblend.fleet.directory.directory import Directory
from semblend.fleet.residency.cache_follower import CacheFeed, CacheFollower
from semblend.fleet.residency.live_donors import LiveDonors


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCounts:
    """What one worker's cache has reported."""

    worker_id: str
    resident_blocks: int
    batches_replayed: int
    gaps: int
    unanswered: int


class FollowedCaches:
    """One follower per feed, and what they report."""

    def __init__(self, directory: Directory, feeds: Iterable[CacheFeed], *, secret: bytes) -> None:
        listed = tuple(feeds)
        self.donors = LiveDonors(directory, followed=[feed.name for feed in listed], secret=secret)
        self.followers = tuple(
            CacheFollower(
                feed,
                apply=self.donors.blocks,
                started=self.donors.started,
                missed=self.donors.missed,
            )
            for feed in listed
        )

    def counts(self) -> Iterator[CacheCounts]:
        """Current counts by feed."""
        for follower in self.followers:
            yield CacheCounts(
                worker_id=follower.feed.worker_id,
                resident_blocks=self.donors.tracker.resident_blocks(follower.feed.name),
                batches_replayed=follower.replayed,
                gaps=follower.gaps,
                unanswered=follower.unanswered,
            )

    def close(self) -> None:
        for follower in self.followers:
            follower.close()
