"""What this adapter was not proven with, refused by name: at start, or for one request."""

from __future__ import annotations

from typing import Any

from semblend.core.architectures import EngineName
from semblend.core.errors import UnsupportedRotaryError
from semblend.integration.probing import can_probe
from semblend.integration.refusals import (
    Features,
    Refusal,
    architecture_refusals,
    more_than_one,
    policy_refusals,
    refused_features,
    stated,
)
from semblend.integration.sglang.hicache import hicache_refusals
from semblend.integration.sglang.options import BackendOptions
from semblend.integration.sglang.versions import VERSIONS

ATTENTION_BACKENDS = ("torch_native", "triton", "fa3", "flashinfer")
"""A pass of one hole a request is a chunk to these, and whether it may hold more is tried at
start; only torch_native was run."""


_OTHER_CACHES: Features = (
    ("LMCache", stated("enable_lmcache")),
    ("FlexKV", stated("enable_flexkv")),
)
_FEATURES: Features = (
    (
        "HiCache on several ranks",
        lambda args: (
            bool(getattr(args, "enable_hierarchical_cache", False))
            and more_than_one("tp_size")(args)
        ),
    ),
    ("pipeline parallelism", more_than_one("pp_size")),
    ("data parallelism", more_than_one("dp_size")),
    ("context parallelism", more_than_one("attn_cp_size")),
    ("decode context parallelism", more_than_one("dcp_size")),
    ("attention data parallelism", stated("enable_dp_attention")),
    ("speculative decoding", stated("speculative_algorithm")),
    (
        "prefill/decode disaggregation",
        lambda args: getattr(args, "disaggregation_mode", "null") not in (None, "null"),
    ),
    *_OTHER_CACHES,
    ("an external cache linker", stated("enable_unified_cache_external_linker")),
    ("streaming sessions", stated("enable_streaming_session")),
    ("session radix cache", stated("enable_session_radix_cache")),
    ("mixed chunked prefill", stated("enable_mixed_chunk")),
    ("two-batch overlap", stated("enable_two_batch_overlap")),
    ("unified memory pools", stated("enable_unified_memory")),
    ("LoRA", stated("enable_lora")),
    ("diffusion language models", stated("dllm_algorithm")),
)
_MODELS: Features = (
    ("pooling models", lambda model: not getattr(model, "is_generation", True)),
    ("multimodal models", stated("is_multimodal")),
    ("encoder-decoder models", stated("is_encoder_decoder")),
)


def resolved(server_args: Any) -> Any:
    """ServerArgs as SGLang reads them: what was given, with its own defaults filled in."""
    from sglang.srt.arg_groups.overrides import resolving_view

    return resolving_view(server_args)


def engine_refusals(context: Any, options: BackendOptions) -> list[Refusal]:
    """Everything in a TreeCacheBuildContext under which donor K/V must not be loaded."""
    refusals = [*version_refusals(), *feature_refusals(context.server_args)]
    for name, present in (
        ("sliding-window attention", context.is_hybrid_swa),
        ("state-space layers", context.is_hybrid_ssm),
        ("sparse attention", context.is_dsa),
        ("a disabled radix cache", context.disable_radix_cache),
    ):
        if present:
            refusals.append(Refusal(feature=name))
    runner = context.tp_worker.model_runner
    return [
        *refusals,
        *_pool_refusals(runner.token_to_kv_pool),
        *_backend_refusals(prefill_backend(runner)),
        *_model_refusals(runner, options),
        *policy_refusals(options, can_probe),
    ]


def other_cache_refusals(context: Any) -> list[Refusal]:
    """What SGLang serves with another cache than its unified tree: ours would take its place."""
    refusals = refused_features(_OTHER_CACHES, resolved(context.server_args))
    if context.is_hybrid_swa and getattr(context, "full_tokens_per_layer", None) == 0:
        refusals.append(Refusal(feature="a model with sliding windows alone"))
    return refusals


def feature_refusals(server_args: Any) -> list[Refusal]:
    """Everything the server was told to do that this adapter was not proven with."""
    arguments = resolved(server_args)
    return [*refused_features(_FEATURES, arguments), *hicache_refusals(arguments)]


def version_refusals() -> list[Refusal]:
    """Nothing for a version whose interfaces are known."""
    from semblend.integration.sglang.contract import contract_problems

    found = VERSIONS.installed()
    refusals = VERSIONS.refusals(None if found is None else found.version)
    return refusals or [Refusal(feature=problem) for problem in contract_problems()]


def prefill_backend(runner: Any) -> str:
    """The attention backend that extends run on."""
    chosen = getattr(runner, "prefill_attention_backend_str", None)
    args = resolved(runner.server_args)
    return str(
        chosen
        or getattr(args, "prefill_attention_backend", None)
        or getattr(args, "attention_backend", None)
        or "unknown"
    )


def request_refusal(request: Any) -> str | None:
    """Why this request's K/V may be neither reused nor donated, if so."""
    start = request.logprob_start_len if request.return_logprob else -1
    checks: tuple[tuple[str, bool], ...] = (
        ("input_embeds", request.input_embeds is not None),
        ("embed_overrides", request.positional_embed_overrides is not None),
        ("multimodal", request.multimodal_inputs is not None),
        ("lora", request.lora_id is not None),
        ("session", request.session is not None or request.session_id is not None),
        (
            "prompt_logprobs",
            0 <= start < len(request.origin_input_ids) - 1,
        ),
        ("hidden_states", bool(request.return_hidden_states)),
        ("routed_experts", bool(getattr(request, "return_routed_experts", False))),
        ("beam_search", getattr(request, "beam_group", None) is not None),
        ("barred_from_the_tree", bool(request.skip_radix_cache_insert)),
        ("pooling", getattr(request, "token_type_ids", None) is not None),
    )
    return next((name for name, present in checks if present), None)


def _pool_refusals(pool: Any) -> list[Refusal]:
    name = type(pool).__name__
    if name != "MHATokenToKVPool":
        return [Refusal(feature=f"K/V pool {name}")]
    refusals = []
    layout = getattr(pool, "kv_cache_layout", "unknown")
    if layout != "nhd":
        refusals.append(Refusal(feature=f"K/V layout {layout}"))
    stored = getattr(pool, "store_dtype", pool.dtype)
    if stored != pool.dtype or str(pool.dtype) not in (
        "torch.float32",
        "torch.float16",
        "torch.bfloat16",
    ):
        refusals.append(Refusal(feature=f"quantised K/V cache ({pool.dtype})"))
    if getattr(pool, "v_head_dim", pool.head_dim) != pool.head_dim:
        refusals.append(Refusal(feature="K and V of different widths"))
    return refusals


def _backend_refusals(backend: str) -> list[Refusal]:
    if backend in ATTENTION_BACKENDS:
        return []
    return [
        Refusal(
            feature=f"attention backend {backend}",
            remedy=f"known are {', '.join(ATTENTION_BACKENDS)}",
        )
    ]


def _model_refusals(runner: Any, options: BackendOptions) -> list[Refusal]:
    from semblend.integration.loaded_model.rotary_rows import (
        proven_table,  # needs torch, and the doctor does not
    )

    config = runner.model_config
    refusals = refused_features(_MODELS, config)
    refusals += architecture_refusals(
        config.hf_config,
        engine=EngineName.SGLANG,
        unverified=options.unverified_architectures,
    )
    try:
        proven_table(runner.model)
    except UnsupportedRotaryError as error:
        refusals.append(Refusal(feature=f"rotary positions: {error}"))
    return refusals
