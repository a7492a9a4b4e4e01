"""`SemBlendVllmConnector`, for `kv_connector_module_path: semblend_vllm_connector.connector`."""

from __future__ import annotations

from semblend.integration.vllm.connector_v1 import SemBlendConnectorV1


class SemBlendVllmConnector(SemBlendConnectorV1):
    """The connector under its second public name; see `semblend.integration.vllm`."""


__all__ = ["SemBlendVllmConnector"]
