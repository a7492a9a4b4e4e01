"""A vLLM engine as a member of a fleet.

With SEMBLEND_NATS_URL set, the scheduler announces its donors. With SEMBLEND_TRANSPORT too,
donors are shared with other machines, and theirs are fetched if that is faster than computing.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from semblend.fleet.announcer import DonorAnnouncer
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.log_follower import LogFollower
from semblend.fleet.membership import join, worker_name
from semblend.fleet.publish.nats_link import LogOptions
from semblend.fleet.transport.store import open_store
from semblend.integration.scheduler.fleet_donors import FleetDonors
from semblend.integration.scheduler.parts import SchedulerParts
from semblend.integration.vllm.options import ConnectorOptions
from semblend.integration.vllm.replicas import replica_of
from semblend.integration.worker.donors import WorkerDonors
from semblend.integration.worker.port import KvAccess
from semblend.integration.worker.segment_exchange import SegmentExchange


class FleetMember:
    """One side's part in the fleet; without SEMBLEND_NATS_URL it does nothing."""

    def __init__(self, vllm_config: Any, options: ConnectorOptions) -> None:
        self.announcer: DonorAnnouncer | None = None
        self.donors: FleetDonors | None = None
        """Donors of other machines, if they are shared."""
        self._config = vllm_config
        self._settings = options.settings()
        stated = self._settings
        transport = bool(stated.nats_url and stated.transport and stated.namespace_secret)
        self._shares = transport and options.mode.loads
        self._leaving = ExitStack()

    def join(self, parts: SchedulerParts) -> FleetDonors | None:
        """Announce the scheduler's donors; return what fetches others', if they are shared.

        Raises
        ------
        SettingsError
            If the fleet's secret or an address is malformed.
        """
        settings, dp_rank = self._settings, replica_of(self._config)
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
            kv_bytes_per_token=kv_bytes_per_token(self._config),
        )
        self._leaving.callback(self.donors.close)
        return self.donors

    def exchange(self, donors: WorkerDonors, access: KvAccess) -> SegmentExchange | None:
        """Start sharing this rank's donors, now that its cache is allocated."""
        if not self._shares:
            return None
        from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

        settings, ranks = self._settings, int(self._config.parallel_config.tensor_parallel_size)
        return SegmentExchange(
            donors,
            access,
            open_store(settings.transport),
            rank=int(get_tensor_model_parallel_rank()),
            ranks=ranks,
            max_bytes=settings.transport_bytes // ranks,
            ttl_s=settings.transport_ttl_s,
        )

    def leave(self) -> None:
        """Leave the fleet. Idempotent."""
        self._leaving.close()


def kv_bytes_per_token(config: Any) -> int:
    """Bytes of one token's K and V over all layers and ranks of a VllmConfig."""
    model = config.model_config
    layers = int(model.get_num_layers(config.parallel_config))
    heads, width = int(model.get_total_num_kv_heads()), int(model.get_head_size())
    parts = 1 if model.use_mla else 2
    return layers * parts * heads * width * int(model.dtype.itemsize)
