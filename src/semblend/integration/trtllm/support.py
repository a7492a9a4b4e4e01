"""What this adapter was not proven with, refused by name: at start, or for one request.

Refusing at start means that nothing is loaded and the engine runs as it would without us;
donors are still found and reported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semblend.core.errors import UnsupportedRotaryError
from semblend.integration.probing import is_dynamic
from semblend.integration.refusals import Refusal, architecture_refusals
from semblend.integration.trtllm import upstream
from semblend.integration.trtllm.engine_facts import EngineFacts
from semblend.integration.trtllm.options import ConnectorOptions

_CACHE_DTYPES = ("float16", "bfloat16", "float32")


def _more_than_one(name: str) -> Callable[[Any], bool]:
    return lambda args: int(getattr(args, name, 1) or 1) > 1


def _cache(name: str) -> Callable[[Any], Any]:
    return lambda args: getattr(getattr(args, "kv_cache_config", None), name, None)


def _set(name: str) -> Callable[[Any], Any]:
    return lambda args: getattr(args, name, None)


_FEATURES: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("pipeline parallelism", _more_than_one("pipeline_parallel_size")),
    ("context parallelism", _more_than_one("context_parallel_size")),
    ("beam search", _more_than_one("max_beam_width")),
    ("attention data parallelism", _set("enable_attention_dp")),
    ("speculative decoding", _set("speculative_config")),
    ("LoRA", _set("enable_lora")),
    ("LoRA", _set("lora_config")),
    ("sparse attention", _set("sparse_attention_config")),
    ("disaggregated serving", _set("cache_transceiver_config")),
    ("attention windows", _cache("max_attention_window")),
    ("attention sinks", _cache("sink_token_length")),
    ("KVCacheManagerV2", lambda args: _cache("use_kv_cache_manager_v2")(args) is True),
)


def engine_refusals(llm_args: Any, facts: EngineFacts, options: ConnectorOptions) -> list[Refusal]:
    """Everything in an engine's arguments under which donor K/V must not be loaded."""
    found = dict.fromkeys(name for name, used in _FEATURES if used(llm_args))
    refusals = [Refusal(feature=name) for name in found]
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
    from semblend.kv.rotary_spec import RotarySpec

    text = facts.text_config
    refusals = architecture_refusals(facts.hf_config, unverified=options.unverified_architectures)
    if getattr(text, "kv_lora_rank", None):
        refusals.append(Refusal(feature="multi-head latent attention"))
    if getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True):
        refusals.append(Refusal(feature="sliding-window attention"))
    try:
        RotarySpec.from_config(text)
    except UnsupportedRotaryError as error:
        refusals.append(Refusal(feature=str(error)))
    policy = options.recompute_policy
    if options.mode.uncertified and policy is not None and is_dynamic(policy):
        refusals.append(
            Refusal(feature=f"policy {policy}", remedy="it asks for a probe that is not made here")
        )
    return refusals


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
