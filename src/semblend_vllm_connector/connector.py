"""`SemBlendVllmConnector`, for `kv_connector_module_path: semblend_vllm_connector.connector`.

The connector of `semblend.integration.vllm` under its second public name.
"""

from __future__ import annotations

from semblend.integration.vllm.connector_v1 import SemBlendConnectorV1 as SemBlendVllmConnector

__all__ = ["SemBlendVllmConnector"]
