"""Namespaces of vLLM requests: what must match for two requests to share K/V.

vLLM's own tenant boundary is the request's `cache_salt`. It is one of the parts, so donors
with one salt are never found under another or without one.
"""

from __future__ import annotations

from typing import Any

from semblend.core.namespace import NONE, Namespace
from semblend.core.settings import Settings
from semblend.integration import isolation
from semblend.integration.loaded_model import model_identity
from semblend.integration.vllm.options import ConnectorOptions


def engine_namespace(config: Any, options: ConnectorOptions, settings: Settings) -> Namespace:
    """The engine's parts; requests add theirs with :func:`of_request`.

    Loaded K/V may come from another machine, so weights are then identified by content.
    """
    model, cache = config.model_config, config.cache_config
    dtype = str(model.dtype).removeprefix("torch.")
    cache_dtype = str(cache.cache_dtype)
    name = options.model_id or str(model.model)
    weights = (
        model_identity.weights_by_content if options.mode.loads else model_identity.weights_by_files
    )(str(model.model), model.hf_config, model.revision)
    return Namespace(
        model=name,
        model_revision=weights,
        tokenizer=name if model.tokenizer == model.model else str(model.tokenizer),
        tokenizer_revision=str(model.tokenizer_revision or weights),
        kv_dtype=dtype,
        cache_dtype=dtype if cache_dtype == "auto" else cache_dtype,
        quantization=model_identity.quantization_name(**quantised(model)),
        adapter=NONE,
        rope=model_identity.rope_name(model.hf_text_config),
        tensor_parallel=int(config.parallel_config.tensor_parallel_size),
        block_size=int(cache.block_size),
        cache_layout="segments:layers,2,tokens,kv_heads,head_dim",
        tenant=settings.donor_tenant,
        template=settings.donor_template,
        cache_salt=NONE,
    )


def quantised(model: Any) -> dict[str, Any]:
    """How a ModelConfig's weights are quantised, in the words of `model_identity`.

    `quantization_config` holds what `--quantization` with layers of one's own says; versions
    before 0.32 have none.
    """
    return {
        "method": model.quantization,
        "stored": getattr(model.hf_config, "quantization_config", None),
        "told": getattr(model, "quantization_config", None),
    }


def of_request(engine: Namespace, cache_salt: str | None) -> Namespace:
    """The namespace of one request under this engine."""
    return engine.with_parts(cache_salt=isolation_of(cache_salt))


def isolation_of(cache_salt: str | None) -> str:
    """A salt's name in namespaces. An empty salt means none, as in vLLM's block hashes."""
    return isolation.by_salt(cache_salt or None)


def shown(namespace: Namespace) -> str:
    """A namespace's short name in log lines and audit records."""
    return model_identity.shown("vllm", namespace)
