"""What a certificate must have been measured with to hold for this engine, beside its weights."""

from __future__ import annotations

from typing import Any

from semblend.core.namespace import NONE
from semblend.integration.loaded_model.model_identity import added_quantization
from semblend.integration.sglang.namespaces import quantised_model


def asked_at_load(model: Any, server_args: Any) -> dict[str, str]:
    """By the names of the certificate's fields, from SGLang's ModelConfig and ServerArgs.

    Nothing is loaded with K/V of another format or with speculation: the adapter refuses both.
    """
    return {
        "quantization": added_quantization(**quantised_model(model, server_args)),
        "kv_format": NONE,
        "speculation": NONE,
    }
