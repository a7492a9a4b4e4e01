"""`SemBlendVllmConnector`, for `kv_connector_module_path: semblend_vllm_connector.connector`.

The connector of `semblend.integration.vllm` as a member of a fleet. With SEMBLEND_NATS_URL
set, the scheduler announces its donors; with SEMBLEND_TRANSPORT too, donors are shared with
other machines, and theirs are fetched where that beats computing.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch

from semblend.fleet.announcer import DonorAnnouncer
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.follower import LogFollower
from semblend.fleet.membership import join, worker_name
from semblend.fleet.publish.nats_link import LogOptions
from semblend.fleet.transport.store import open_store
from semblend.integration.vllm.connector_v1 import SemBlendConnectorV1
from semblend.integration.vllm.scheduler_side import SchedulerSide
from semblend_vllm_connector.fleet_donors import FleetDonors
from semblend_vllm_connector.segment_exchange import SegmentExchange


class SemBlendVllmConnector(SemBlendConnectorV1):
    """The connector under its second public name; see `semblend.integration.vllm`."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._leaving = ExitStack()
        self.announcer: DonorAnnouncer | None = None
        self.donors_elsewhere: FleetDonors | None = None
        self._parallel = vllm_config.parallel_config
        settings = self.options.settings()
        self._shares = bool(settings.nats_url and settings.transport) and self.options.mode.loads
        if self.scheduler_side is not None:
            self._join(self.scheduler_side)

    def _join(self, side: SchedulerSide) -> None:
        settings, dp_rank = side.setup.settings, int(self._parallel.data_parallel_rank)
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
        self.donors_elsewhere = FleetDonors(
            side,
            announcer=self.announcer,
            directory=directory,
            store=store,
            worker_id=worker_name(settings),
            dp_rank=dp_rank,
        )
        self._leaving.callback(self.donors_elsewhere.close)
        side.fetch_from(self.donors_elsewhere)

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The cache is allocated; donors can be shared from here on."""
        super().register_kv_caches(kv_caches)
        side = self._worker
        if not self._shares or side.access is None or side.donors is None:
            return
        from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

        settings = self.options.settings()
        ranks = int(self._parallel.tensor_parallel_size)
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

    def shutdown(self) -> None:
        """Withdraw what is shared, say goodbye to the fleet, then stop."""
        super().shutdown()
        self._leaving.close()


__all__ = ["SemBlendVllmConnector"]
