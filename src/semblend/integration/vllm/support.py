"""What this adapter was not proven with, refused by name: at start, or for one request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from semblend.integration.refusals import (
    Features,
    Refusal,
    architecture_refusals,
    refused_features,
    rotary_refusals,
)
from semblend.integration.vllm.options import ConnectorOptions
from semblend.integration.vllm.versions import judge

WORKER_CLASS = "semblend.integration.vllm.worker.SemBlendWorker"
_BEAM = re.compile(r"-beam-\d+(-[0-9a-f]+)?$")
"""Request ids of the server's beam search. Every step of every beam is a separate request that
would load the prompt again; if computed, they all share it through vLLM's prefix cache."""
CACHE_DTYPES = ("auto", "float32", "float16", "bfloat16")


def _model(config: Any, name: str) -> bool:
    return bool(getattr(config.model_config, name, False))


def _text(config: Any, name: str) -> Any:
    return getattr(config.model_config.hf_text_config, name, None)


def _sliding(config: Any) -> bool:
    kinds = _text(config, "layer_types")
    if kinds is not None:
        return any("sliding" in kind for kind in kinds)
    window = bool(_text(config, "sliding_window"))
    return window and _text(config, "use_sliding_window") is not False


_FEATURES: Features = (
    ("pipeline parallelism", lambda c: c.parallel_config.pipeline_parallel_size > 1),
    ("data parallelism", lambda c: c.parallel_config.data_parallel_size > 1),
    (
        "decode context parallelism",
        lambda c: getattr(c.parallel_config, "decode_context_parallel_size", 1) > 1,
    ),
    (
        "prefill context parallelism",
        lambda c: getattr(c.parallel_config, "prefill_context_parallel_size", 1) > 1,
    ),
    (
        "dual batch overlap",
        lambda c: bool(getattr(c.parallel_config, "use_ubatching", False)),
    ),
    ("speculative decoding", lambda c: c.speculative_config is not None),
    ("encoder-decoder models", lambda c: _model(c, "is_encoder_decoder")),
    ("multi-head latent attention", lambda c: _model(c, "use_mla")),
    ("hybrid or state-space models", lambda c: _model(c, "is_hybrid")),
    ("M-RoPE", lambda c: _model(c, "uses_mrope")),
    ("ALiBi positions", lambda c: _model(c, "uses_alibi")),
    ("sliding-window attention", _sliding),
    ("chunked local attention", lambda c: bool(_text(c, "attention_chunk_size"))),
    (
        "logit soft-capping in attention",
        lambda c: bool(_text(c, "attn_logit_softcapping") or _text(c, "attention_logit_cap")),
    ),
    (
        "pooling models",
        lambda c: getattr(c.model_config, "runner_type", "generate") != "generate",
    ),
    (
        "cross-layer K/V sharing",
        lambda c: (
            bool(_text(c, "num_kv_shared_layers"))
            or bool(getattr(c.cache_config, "kv_sharing_fast_prefill", False))
        ),
    ),
)


def engine_refusals(config: Any, options: ConnectorOptions) -> list[Refusal]:
    """Everything in a VllmConfig that rules out loading donor K/V."""
    refusals = refused_features(_FEATURES, config)
    dtype = str(config.cache_config.cache_dtype)
    if dtype not in CACHE_DTYPES:
        refusals.append(Refusal(feature=f"quantised K/V cache ({dtype})"))
    elif dtype == "auto" and _stores_kv_quantised(config):
        refusals.append(
            Refusal(
                feature="quantised K/V cache (the checkpoint asks for one)",
                remedy="pass --kv-cache-dtype bfloat16",
            )
        )
    refusals += rotary_refusals(config.model_config.hf_text_config)
    transfer = config.kv_transfer_config
    if transfer.kv_load_failure_policy != "recompute":
        refusals.append(
            Refusal(
                feature=f"kv_load_failure_policy={transfer.kv_load_failure_policy!r}",
                remedy='set "kv_load_failure_policy": "recompute"; or a failed load fails requests',
            )
        )
    if transfer.kv_role != "kv_both":
        refusals.append(Refusal(feature=f"kv_role={transfer.kv_role!r}", remedy="use kv_both"))
    refusals += architecture_refusals(
        config.model_config.hf_config, unverified=options.unverified_architectures
    )
    if options.nested:
        refusals += _worker_refusals(config.parallel_config.worker_cls)
    return refusals


def _stores_kv_quantised(config: Any) -> bool:
    """Whether a checkpoint with quantised weights wants K/V quantised too; `auto` obeys it."""
    stated = getattr(config.model_config.hf_config, "quantization_config", None)
    return isinstance(stated, Mapping) and bool(
        stated.get("kv_cache_scheme") or stated.get("kv_cache_quant_algo")
    )


def offloading_refusals(kv_offloading_size: float | None) -> list[Refusal]:
    """Refused if vLLM offloads K/V itself, because it then uses another connector."""
    if kv_offloading_size is None:
        return []
    return [
        Refusal(
            feature="--kv-offloading-size",
            remedy=(
                "vLLM replaces kv_connector with its offloading connector and never asks SemBlend; "
                "drop it and set host_donor_bytes to give donors host memory"
            ),
        )
    ]


def sharing_refusal(group: Any, own: Any) -> Refusal:
    """The refusal of a MultiConnector that has `own` among others, which it names."""
    others = (type(one).__name__ for one in getattr(group, "_connectors", ()) if one is not own)
    named = ", ".join(dict.fromkeys(others)) or "others"
    return Refusal(
        feature=f"MultiConnector with {named}",
        remedy=(
            "connectors that key K/V by token ids, such as LMCache's, would store approximate "
            "K/V as exact; make SemBlend the only connector, or use mode discovery_only"
        ),
    )


def version_refusals(version: str) -> list[Refusal]:
    """Empty for a version whose contract is known."""
    if judge(version).supported:
        return []
    return [Refusal(feature=f"vLLM {version}", remedy="its connector contract is not known")]


def cache_refusals(kv_cache_config: Any) -> list[Refusal]:
    """Everything in a KVCacheConfig that rules out loading donor K/V."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        return [Refusal(feature=f"{len(groups)} K/V cache groups")]
    spec = groups[0].kv_cache_spec
    if type(spec) is not FullAttentionSpec:
        return [Refusal(feature=f"K/V cache of kind {type(spec).__name__}")]
    refusals = []
    dtype = str(spec.dtype).removeprefix("torch.")
    if dtype not in CACHE_DTYPES:
        # A checkpoint may ask for it beside its weights, whatever `--kv-cache-dtype` says.
        refusals.append(Refusal(feature=f"quantised K/V cache ({dtype})"))
    if spec.sliding_window or spec.attention_chunk_size:
        refusals.append(Refusal(feature="sliding-window or chunked attention"))
    if getattr(spec, "non_causal", False):
        refusals.append(Refusal(feature="attention that is not causal"))
    return refusals


def layer_refusals(layers: Iterable[Any]) -> list[Refusal]:
    """Everything in the attention layers that was not proven."""
    refusals: dict[str, Refusal] = {}
    for layer in layers:
        impl = layer.impl
        for feature, present in (
            ("attention sinks", getattr(impl, "sinks", None) is not None),
            ("ALiBi positions", getattr(impl, "alibi_slopes", None) is not None),
            ("cross-layer K/V sharing", bool(getattr(layer, "kv_sharing_target_layer_name", None))),
            (
                "an attention backend that does not write K/V separately",
                not hasattr(impl, "do_kv_cache_update"),
            ),
        ):
            if present:
                refusals[feature] = Refusal(feature=feature)
    return list(refusals.values())


def request_refusal(request: Any) -> str | None:
    """Why this request's K/V may be neither reused nor donated; None if it may."""
    if request.prompt_token_ids is None or request.prompt_embeds is not None:
        return "prompt_embeds"
    if request.pooling_params is not None:
        return "pooling"
    if request.lora_request is not None:
        return "lora"
    if request.mm_features:
        return "multimodal"
    if _BEAM.search(str(request.request_id)):
        return "beam_search"
    if getattr(request, "resumable", False):
        return "streaming_session"
    if request.skip_reading_prefix_cache:
        return "skip_reading_prefix_cache"
    if request.sampling_params is not None and request.sampling_params.prompt_logprobs is not None:
        return "prompt_logprobs"
    return None


def _worker_refusals(worker_cls: Any) -> list[Refusal]:
    name = worker_cls if isinstance(worker_cls, str) else f"{worker_cls.__module__}"
    if name == WORKER_CLASS or _is_our_worker(worker_cls):
        return []
    return [
        Refusal(
            feature=f"worker class {worker_cls}",
            remedy=f"pass --worker-cls {WORKER_CLASS}, or use execution=staged",
        )
    ]


def _is_our_worker(worker_cls: Any) -> bool:
    """Whether it is a subclass of ours, possibly given as text."""
    from vllm.utils.import_utils import resolve_obj_by_qualname

    try:
        resolved = (
            resolve_obj_by_qualname(worker_cls) if isinstance(worker_cls, str) else worker_cls
        )
    except (ImportError, AttributeError, ValueError):
        return False
    return bool(getattr(resolved, "hands_model_to_connector", False))
