"""A vLLM engine as a member of a fleet.

With SEMBLEND_NATS_URL set, the scheduler announces its donors; with SEMBLEND_TRANSPORT too,
donors are shared with other machines, and theirs are fetched where that beats computing.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from semblend.fleet.announcer import DonorAnnouncer
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.follower import LogFollower
from semblend.fleet.membership import join, worker_name
from semblend.fleet.publish.nats_link import LogOptions
from semblend.fleet.transport.store import open_store
from semblend.integration.vllm.fleet_donors import FleetDonors
from semblend.integration.vllm.options import ConnectorOptions
from semblend.integration.vllm.scheduler_side import SchedulerSide
from semblend.integration.vllm.segment_exchange import SegmentExchange
from semblend.integration.vllm.worker_side import WorkerSide


class FleetMember:
    """One side's part in the fleet; without SEMBLEND_NATS_URL it does nothing."""

    def __init__(self, vllm_config: Any, options: ConnectorOptions) -> None:
        self.announcer: DonorAnnouncer | None = None
        self.donors: FleetDonors | None = None
        """Donors of other machines, where they are shared."""
        self._parallel = vllm_config.parallel_config
        self._settings = options.settings()
        transport = bool(self._settings.nats_url and self._settings.transport)
        self._shares = transport and options.mode.loads
        self._leaving = ExitStack()

    def join(self, side: SchedulerSide) -> None:
        """Announce the scheduler's donors and let it fetch others'.

        Raises
        ------
        SettingsError
            If the fleet's secret or an address is not what it should be.
        """
        settings, dp_rank = self._settings, int(self._parallel.data_parallel_rank)
        self.announcer = join(side.bridge.pipeline, settings, side.setup.namespace, dp_rank=dp_rank)
        if self.announcer is None:
            return
        self._leaving.callback(self.announcer.close)
        if not self._shares:
            return
        directory = Directory()
        options = LogOptions(url=settings.nats_url, subject=settings.nats_subject)
        self._leaving.callback(LogFollower(directory, options).close)
        store = open_store(settings.transport)
        self._leaving.callback(store.close)
        self.donors = FleetDonors(
            side,
            announcer=self.announcer,
            directory=directory,
            store=store,
            worker_id=worker_name(settings),
            dp_rank=dp_rank,
        )
        self._leaving.callback(self.donors.close)
        side.fetch_from(self.donors)

    def share(self, side: WorkerSide) -> None:
        """Share this rank's donors from here on: its cache is allocated."""
        if not self._shares or side.access is None or side.donors is None:
            return
        from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

        settings, ranks = self._settings, int(self._parallel.tensor_parallel_size)
        side.share_with(
            SegmentExchange(
                side.donors,
                side.access,
                open_store(settings.transport),
                rank=int(get_tensor_model_parallel_rank()),
                ranks=ranks,
                max_bytes=settings.transport_bytes // ranks,
                ttl_s=settings.transport_ttl_s,
            )
        )

    def leave(self) -> None:
        """Say goodbye. Idempotent."""
        self._leaving.close()
