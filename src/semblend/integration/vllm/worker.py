"""`--worker-cls semblend.integration.vllm.worker.SemBlendWorker`.

The one thing vLLM's connector interface does not give a worker-side connector is
the model. A worker class is a documented setting; this one is vLLM's own worker for
the platform, and hands its runner to the connector once the K/V cache exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.platforms import current_platform

if TYPE_CHECKING or current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as PlatformWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker


class SemBlendWorker(PlatformWorker):
    """vLLM's worker, which also hands its model runner to the connector."""

    hands_model_to_connector = True

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Allocate the K/V cache as ever, then hand the runner over."""
        super().initialize_from_config(kv_cache_config)
        if not has_kv_transfer_group():
            return
        bind = getattr(get_kv_transfer_group(), "bind_model_runner", None)
        if bind is not None:
            bind(self.model_runner)
