"""What a certificate must have been measured with to hold for this engine, beside its weights.

`semblend certify` writes into a certificate what it finds here, and the connector compares.
"""

from __future__ import annotations

from typing import Any

from semblend.integration.loaded_model.model_identity import added_quantization
from semblend.integration.vllm import namespaces
from semblend.integration.vllm.speculation import speculation_name


def asked_at_load(config: Any) -> dict[str, str]:
    """By the names of the certificate's fields; `config` is vLLM's VllmConfig."""
    return {
        "quantization": added_quantization(**namespaces.quantised(config.model_config)),
        "kv_format": namespaces.kv_format(config),
        "speculation": speculation_name(config),
    }
