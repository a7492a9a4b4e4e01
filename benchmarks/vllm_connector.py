"""How benchmarks start vLLM with SemBlend: one place for the connector's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WORKER = "semblend.integration.vllm.worker.SemBlendWorker"
CONNECTOR = "SemBlendConnectorV1"
MODULE = "semblend.integration.vllm.connector_v1"


def transfer(
    extra: Mapping[str, Any], *, connector: str = CONNECTOR, module: str = MODULE
) -> dict[str, Any]:
    """What `--kv-transfer-config` takes; `extra` are the connector's own options."""
    return {
        "kv_connector": connector,
        "kv_connector_module_path": module,
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": dict(extra),
    }


def llm_options(
    extra: Mapping[str, Any], *, connector: str = CONNECTOR, module: str = MODULE
) -> dict[str, Any]:
    """The same for `vllm.LLM`, with the worker class that it needs."""
    from vllm.config import KVTransferConfig

    settings = transfer(extra, connector=connector, module=module)
    return {"worker_cls": WORKER, "kv_transfer_config": KVTransferConfig(**settings)}
