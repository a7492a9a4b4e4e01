"""What this adapter was not proven with, refused by name: at start, or for one request.

Refusing at start means that nothing is loaded and the engine runs as it would without us;
donors are still found and reported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semblend.core.architectures import EngineName
from semblend.integration.probing import is_static
from semblend.integration.refusals import (
    Features,
    Refusal,
    architecture_refusals,
    more_than_one,
    policy_refusals,
    refused_features,
    rotary_refusals,
    stated,
)
from semblend.integration.trtllm import upstream
from semblend.integration.trtllm.engine_facts import EngineFacts
from semblend.integration.trtllm.options import ConnectorOptions

_CACHE_DTYPES = ("float16", "bfloat16", "float32")
MANAGER_SETTING = "use_kv_cache_manager_v2"
"""The key of kv_cache_config that chooses the K/V cache manager, where a version has it."""
MANAGER_REMEDY = f"set {MANAGER_SETTING}: false in kv_cache_config"


def _cache(name: str) -> Callable[[Any], Any]:
    return lambda args: getattr(getattr(args, "kv_cache_config", None), name, None)


_FEATURES: Features = (
    ("pipeline parallelism", more_than_one("pipeline_parallel_size")),
    ("context parallelism", more_than_one("context_parallel_size")),
    ("beam search", more_than_one("max_beam_width")),
    ("attention data parallelism", stated("enable_attention_dp")),
    ("speculative decoding", stated("speculative_config")),
    ("LoRA", stated("enable_lora")),
    ("LoRA", stated("lora_config")),
    ("sparse attention", stated("sparse_attention_config")),
    ("disaggregated serving", stated("cache_transceiver_config")),
    ("attention windows", _cache("max_attention_window")),
    ("attention sinks", _cache("sink_token_length")),
)


def engine_refusals(llm_args: Any, facts: EngineFacts, options: ConnectorOptions) -> list[Refusal]:
    """Everything in an engine's arguments under which donor K/V must not be loaded."""
    refusals = refused_features(_FEATURES, llm_args)
    if _cache(MANAGER_SETTING)(llm_args) is True:  # "auto" is decided later: the worker sees it
        refusals.append(Refusal(feature="KVCacheManagerV2", remedy=MANAGER_REMEDY))
    if (facts.tensor_parallel or 1) > 1 and not upstream.collectives_by_mpi():
        refusals.append(Refusal(feature="tensor parallelism without MPI"))
    refusals += _cache_refusals(facts)
    if facts.hf_config is None:
        return [*refusals, Refusal(feature="a model whose configuration is not on this machine")]
    return [*refusals, *_model_refusals(facts, options)]


def _cache_refusals(facts: EngineFacts) -> list[Refusal]:
    if facts.cache_dtype is None or facts.cache_dtype.lower() in _CACHE_DTYPES:
        return []  # an unknown part is the namespace's business
    return [Refusal(feature=f"a K/V cache of type {facts.cache_dtype}")]


def _model_refusals(facts: EngineFacts, options: ConnectorOptions) -> list[Refusal]:
    text = facts.text_config
    refusals = architecture_refusals(
        facts.hf_config, engine=EngineName.TRTLLM, unverified=options.unverified_architectures
    )
    if getattr(text, "kv_lora_rank", None):
        refusals.append(Refusal(feature="multi-head latent attention"))
    if getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True):
        refusals.append(Refusal(feature="sliding-window attention"))
    return [*refusals, *rotary_refusals(text), *policy_refusals(options, is_static)]


_REQUEST_FEATURES: tuple[tuple[str, str], ...] = (
    ("LoRA", "lora_task_id"),
    ("multimodal input", "multimodal_hashes"),
    ("multimodal input", "multimodal_embedding"),
    ("prompt tuning", "prompt_embedding_table"),
    ("given position ids", "position_ids"),
    ("encoder input", "encoder_tokens"),
)


def request_refusal(request: Any) -> str | None:
    """Why this request's K/V may be neither reused nor donated, if so.

    An attribute that this version's request does not have is a feature it cannot use.
    """
    for feature, attribute in _REQUEST_FEATURES:
        if _present(getattr(request, attribute, None)):
            return feature
    if getattr(request, "is_dummy_request", False) is True:
        return "a dummy request"
    if getattr(request, "is_generation_only_request", False) is True:
        return "generation only"
    return None


def _present(value: Any) -> bool:
    if value is None:
        return False
    size = getattr(value, "__len__", None)
    return True if size is None else size() > 0
