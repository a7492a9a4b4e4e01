"""An engine as a member of a fleet, where its scheduler decides for its workers.

With SEMBLEND_NATS_URL set, the scheduler announces its donors. With SEMBLEND_TRANSPORT too,
donors are shared with other machines, and theirs are fetched if that is faster than computing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from semblend.core.settings import Settings
from semblend.fleet.announcer import DonorAnnouncer
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.log_follower import LogFollower
from semblend.fleet.membership import join, worker_name
from semblend.fleet.publish.nats_link import LogOptions
from semblend.fleet.transport.store import open_store
from semblend.integration.scheduler.fleet_donors import FleetDonors
from semblend.integration.scheduler.parts import SchedulerParts
from semblend.integration.worker.donors import WorkerDonors
from semblend.integration.worker.port import KvAccess, Ranks
from semblend.integration.worker.segment_exchange import SegmentExchange


class FleetPart:
    """One side's part in the fleet; without SEMBLEND_NATS_URL it does nothing."""

    def __init__(
        self,
        settings: Settings,
        *,
        loads: bool,
        dp_rank: int,
        kv_bytes_per_token: Callable[[], int],
    ) -> None:
        """Nothing is joined yet.

        Parameters
        ----------
        loads
            Whether donor K/V is loaded at all: if not, none is shared.
        dp_rank
            Which of several replicas of one engine this is.
        kv_bytes_per_token
            K and V of one token over all layers and ranks.
        """
        self.announcer: DonorAnnouncer | None = None
        self.donors: FleetDonors | None = None
        """Donors of other machines, if they are shared."""
        self._settings = settings
        self._dp_rank = dp_rank
        self._kv_bytes = kv_bytes_per_token
        transport = settings.nats_url and settings.transport and settings.namespace_secret
        self._shares = bool(transport) and loads
        self._leaving = ExitStack()

    def join(self, parts: SchedulerParts) -> FleetDonors | None:
        """Announce the scheduler's donors; return what fetches others', if they are shared.

        Raises
        ------
        SettingsError
            If the fleet's secret or an address is malformed.
        """
        settings, dp_rank = self._settings, self._dp_rank
        pipeline, namespace = parts.planner.pipeline, parts.setup.namespace
        self.announcer = join(pipeline, settings, namespace, dp_rank=dp_rank)
        if self.announcer is None:
            return None
        self._leaving.callback(self.announcer.close)
        if not self._shares:
            return None
        directory = Directory()
        options = LogOptions(url=settings.nats_url, subject=settings.nats_subject)
        self._leaving.callback(LogFollower(directory, options).close)
        store = open_store(settings.transport)
        self._leaving.callback(store.close)
        self.donors = FleetDonors(
            parts,
            announcer=self.announcer,
            directory=directory,
            store=store,
            worker_id=worker_name(settings),
            dp_rank=dp_rank,
            kv_bytes_per_token=self._kv_bytes(),
        )
        self._leaving.callback(self.donors.close)
        return self.donors

    def exchange(
        self, donors: WorkerDonors, access: KvAccess, ranks: Ranks
    ) -> SegmentExchange | None:
        """Start sharing this rank's donors, now that its cache is allocated."""
        if not self._shares:
            return None
        settings = self._settings
        return SegmentExchange(
            donors,
            access,
            open_store(settings.transport),
            rank=ranks.rank,
            ranks=ranks.count,
            max_bytes=settings.transport_bytes // ranks.count,
            ttl_s=settings.transport_ttl_s,
        )

    def leave(self) -> None:
        """Leave the fleet. Idempotent."""
        self._leaving.close()
