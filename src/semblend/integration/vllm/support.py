"""What this adapter was not proven with, refused by name: at start, or for one request."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from typing import Any

from semblend.core.architectures import EngineName, Trait, traits_taken
from semblend.integration.modes import Mode
from semblend.integration.refusals import (
    Features,
    Refusal,
    Traits,
    architecture_names,
    architecture_refusals,
    refused_features,
    rotary_refusals,
    trait_refusals,
)
from semblend.integration.vllm.namespaces import FP8_CACHES, length_class
from semblend.integration.vllm.options import ConnectorOptions
from semblend.integration.vllm.speculation import speculation_refusals

WORKER_CLASS = "semblend.integration.vllm.worker.SemBlendWorker"
_BEAM = re.compile(r"-beam-\d+(-[0-9a-f]+)?$")
"""Request ids of the server's beam search. Every step of every beam is a separate request that
would load the prompt again; if computed, they all share it through vLLM's prefix cache."""
CACHE_DTYPES = ("auto", "float32", "float16", "bfloat16", *FP8_CACHES)
_CACHE_MODES = ("NONE", "FP8_PER_TENSOR")
"""How vLLM quantises caches; it calls scales of heads the second, too."""


def _model(config: Any, name: str) -> bool:
    return bool(getattr(config.model_config, name, False))


def _text(config: Any, name: str) -> Any:
    return getattr(config.model_config.hf_text_config, name, None)


def has_windows(config: Any) -> bool:
    """Whether some layer of a model has a sliding window."""
    kinds = _text(config, "layer_types")
    if kinds is not None:
        return any("sliding" in kind for kind in kinds)
    window = bool(_text(config, "sliding_window"))
    return window and _text(config, "use_sliding_window") is not False


_FEATURES: Features = (
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
    ("encoder-decoder models", lambda c: _model(c, "is_encoder_decoder")),
    ("hybrid or state-space models", lambda c: _model(c, "is_hybrid")),
    ("ALiBi positions", lambda c: _model(c, "uses_alibi")),
    (
        "pooling models",
        lambda c: getattr(c.model_config, "runner_type", "generate") != "generate",
    ),
    (
        "scales of the K/V cache measured at run time",
        lambda c: bool(getattr(c.cache_config, "calculate_kv_scales", False)),
    ),
)

_TRAITS: Traits = (
    (Trait.LATENT, lambda c: _model(c, "use_mla")),
    (Trait.MROPE, lambda c: _model(c, "uses_mrope")),
    (Trait.WINDOWS, has_windows),
    (Trait.CHUNKS, lambda c: bool(_text(c, "attention_chunk_size"))),
    (
        Trait.SOFT_CAPS,
        lambda c: bool(_text(c, "attn_logit_softcapping") or _text(c, "attention_logit_cap")),
    ),
    (
        Trait.SHARED_KV,
        lambda c: (
            bool(_text(c, "num_kv_shared_layers"))
            or bool(getattr(c.cache_config, "kv_sharing_fast_prefill", False))
        ),
    ),
)
"""Taken where a row of `core.architectures` has it for vLLM, refused elsewhere."""


def taken_traits(config: Any) -> frozenset[Trait]:
    """What vLLM was run with in this model's architecture."""
    return traits_taken(architecture_names(config.model_config.hf_config), EngineName.VLLM)


def engine_refusals(config: Any, options: ConnectorOptions) -> list[Refusal]:
    """Everything in a VllmConfig that rules out loading donor K/V."""
    refusals = _parallel_refusals(config.parallel_config)
    refusals += refused_features(_FEATURES, config) + speculation_refusals(config)
    taken = taken_traits(config)
    refusals += trait_refusals(_TRAITS, config, taken=taken)
    dtype = str(config.cache_config.cache_dtype)
    if dtype not in CACHE_DTYPES:
        refusals.append(Refusal(feature=f"quantised K/V cache ({dtype})"))
    elif dtype == "auto" and _stores_kv_quantised(config):
        refusals.append(
            Refusal(
                feature="quantised K/V cache (the checkpoint asks for one)",
                remedy="pass --kv-cache-dtype fp8 or bfloat16",
            )
        )
    refusals += rotary_refusals(
        config.model_config.hf_text_config,
        by_layer=True,
        text_positions=Trait.MROPE in taken,
        fixed_length=True,
    )
    if options.mode is Mode.SEGMENTED and length_class(config.model_config):
        refusals.append(
            Refusal(
                feature="dynamic NTK or longrope under a certificate",
                remedy="certificates do not say which length class they were measured with",
            )
        )
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
        config.model_config.hf_config,
        engine=EngineName.VLLM,
        unverified=options.unverified_architectures,
    )
    if options.nested:
        refusals += _worker_refusals(config.parallel_config.worker_cls)
    return refusals


def _parallel_refusals(parallel: Any) -> list[Refusal]:
    """Ranks that compute parts of one pass, or that wait for each other's.

    Data-parallel replicas of a dense model are engines of their own: vLLM tells each that it is
    alone, so they do not show here.
    """
    refusals = []
    if parallel.pipeline_parallel_size > 1:
        remedy = "a pass would have to go through all stages: docs/vllm.md#parallelism"
        refusals.append(Refusal(feature="pipeline parallelism", remedy=remedy))
    if parallel.data_parallel_size > 1:
        remedy = "its ranks step together, and would not for our passes: docs/vllm.md#parallelism"
        refusals.append(Refusal(feature="data parallelism with experts", remedy=remedy))
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


def cache_refusals(kv_cache_config: Any, taken: Container[Trait] = ()) -> list[Refusal]:
    """Everything in a KVCacheConfig that rules out loading donor K/V.

    `taken` are the traits that vLLM was run with in this model's architecture.
    """
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        # A group keeps only what its windows still see, so donors would have gaps.
        remedy = "pass --disable-hybrid-kv-cache-manager" if Trait.WINDOWS in taken else ""
        return [Refusal(feature=f"{len(groups)} K/V cache groups", remedy=remedy)]
    spec = groups[0].kv_cache_spec
    kinds = (FullAttentionSpec, *([MLAAttentionSpec] if Trait.LATENT in taken else []))
    if type(spec) not in kinds:
        return [Refusal(feature=f"K/V cache of kind {type(spec).__name__}")]
    refusals = []
    dtype = str(spec.dtype).removeprefix("torch.")
    if dtype not in (*CACHE_DTYPES, "uint8") or _mode(spec) not in _CACHE_MODES:
        # A checkpoint may ask for it beside its weights, whatever `--kv-cache-dtype` says.
        refusals.append(Refusal(feature=f"quantised K/V cache ({dtype}, {_mode(spec)})"))
    elif type(spec) is MLAAttentionSpec and _mode(spec) != "NONE":
        refusals.append(Refusal(feature=f"quantised rows of latents ({_mode(spec)})"))
    for trait, limit in (
        (Trait.WINDOWS, spec.sliding_window),
        (Trait.CHUNKS, spec.attention_chunk_size),
    ):
        if limit and trait not in taken:
            refusals.append(Refusal(feature=trait.value))
    if getattr(spec, "non_causal", False):
        refusals.append(Refusal(feature="attention that is not causal"))
    return refusals


def _mode(spec: Any) -> str:
    """How a cache's numbers are quantised; "NONE" if they are not."""
    return str(getattr(getattr(spec, "kv_quant_mode", None), "name", "NONE"))


def layer_refusals(layers: Iterable[Any], taken: Container[Trait] = ()) -> list[Refusal]:
    """Everything in the attention layers that was not proven. `taken` as in `cache_refusals`."""
    refusals: dict[str, Refusal] = {}
    for layer in layers:
        impl = layer.impl
        for feature, present in (
            (
                Trait.SINKS.value,
                getattr(impl, "sinks", None) is not None and Trait.SINKS not in taken,
            ),
            ("a sparse-attention indexer", getattr(layer, "indexer", None) is not None),
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
    if worker_cls == WORKER_CLASS or _is_our_worker(worker_cls):
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
