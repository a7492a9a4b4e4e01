"""`SemBlendVllmConnector`, for `kv_connector_module_path: semblend_vllm_connector.connector`.

The connector of `semblend.integration.vllm`; with SEMBLEND_NATS_URL set, the scheduler also
announces its donors to a fleet.
"""

from __future__ import annotations

from typing import Any

from semblend.fleet.announcer import DonorAnnouncer
from semblend.fleet.membership import join
from semblend.integration.vllm.connector_v1 import SemBlendConnectorV1


class SemBlendVllmConnector(SemBlendConnectorV1):
    """The connector under its second public name; see `semblend.integration.vllm`."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.announcer: DonorAnnouncer | None = None
        side = self.scheduler_side
        if side is not None:
            self.announcer = join(
                side.bridge.pipeline,
                side.setup.settings,
                side.setup.namespace,
                dp_rank=int(vllm_config.parallel_config.data_parallel_rank),
            )

    def shutdown(self) -> None:
        """Say goodbye to the fleet, then stop."""
        if self.announcer is not None:
            self.announcer.close()
        super().shutdown()


__all__ = ["SemBlendVllmConnector"]
