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
from semblend.integration.lora_adapter import LoraAdapter
from semblend.integration.vllm import speculation
from semblend.integration.vllm.options import ConnectorOptions
from semblend.kv.rotary_config import ConfigReader

FP8_CACHES = ("fp8", "fp8_e4m3")
"""What `--kv-cache-dtype` calls one and the same format, e4m3."""


def cache_format(config: Any) -> str:
    """The format of the K/V cache: the model's own, or fp8."""
    dtype = str(config.cache_config.cache_dtype)
    if dtype == "auto":
        return str(config.model_config.dtype).removeprefix("torch.")
    return "fp8_e4m3" if dtype in FP8_CACHES else dtype


def kv_format(config: Any) -> str:
    """The K/V cache's own number format; "none" if it is the model's."""
    dtype = str(config.model_config.dtype).removeprefix("torch.")
    return NONE if (found := cache_format(config)) == dtype else found


def engine_namespace(config: Any, options: ConnectorOptions, settings: Settings) -> Namespace:
    """The engine's parts; requests add theirs with :func:`of_request`.

    Loaded K/V may come from another machine, so weights are then identified by content.
    """
    model, cache = config.model_config, config.cache_config
    dtype = str(model.dtype).removeprefix("torch.")
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
        cache_dtype=cache_format(config),
        quantization=model_identity.quantization_name(**quantised(model)),
        adapter=NONE,
        rope=model_identity.rope_name(model.hf_text_config) + length_class(model),
        tensor_parallel=int(config.parallel_config.tensor_parallel_size),
        block_size=int(cache.block_size),
        cache_layout=_layout(config),
        tenant=settings.donor_tenant,
        template=settings.donor_template,
        cache_salt=NONE,
    )


def _layout(config: Any) -> str:
    """How donors lie: a drafter's layers come after the model's."""
    latent = config.model_config.use_mla
    rows = "1,tokens,1,latent+k_pe" if latent else "2,tokens,kv_heads,head_dim"
    layers = f"segments:layers,{rows}"
    drafter = speculation.drafter_name(config)
    return layers if drafter == NONE else f"{layers}+{drafter}"


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


def asked_at_load(config: Any) -> dict[str, str]:
    """What a certificate must have been measured with to hold for this engine, beside its weights.

    By the names of the certificate's fields: `semblend certify` writes what it finds here, and
    the connector compares.
    """
    return {
        "quantization": model_identity.added_quantization(**quantised(config.model_config)),
        "kv_format": kv_format(config),
        "speculation": speculation.speculation_name(config),
    }


def length_class(model_config: Any) -> str:
    """What decides which rotary rows vLLM uses under dynamic NTK and longrope; else empty.

    vLLM decides once, from the lengths it is started with, and not for each prompt. So K can be
    moved within an engine, and between engines that decided alike.
    """
    reader = ConfigReader.of(model_config.hf_text_config)
    if not reader.by_length:
        return ""
    trained = reader.original_max_positions
    rows = "long" if int(model_config.max_model_len) > trained else "short"
    return f";{rows} of {trained}, {reader.max_positions} positions"


def of_request(
    engine: Namespace, cache_salt: str | None, adapter: LoraAdapter | None = None
) -> Namespace:
    """The namespace of one request under this engine."""
    parts = {} if adapter is None else {"adapter": adapter.part}
    return engine.with_parts(cache_salt=isolation_of(cache_salt), **parts)


def isolation_of(cache_salt: str | None) -> str:
    """A salt's name in namespaces. An empty salt means none, as in vLLM's block hashes."""
    return isolation.by_salt(cache_salt or None)
