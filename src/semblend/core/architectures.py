"""The model architectures reuse was run with, engine by engine, and those it cannot work with.

The one place that says which are taken. The adapters' refusals, `semblend doctor`, the embedded
engine and the tables in docs read it. Weights and shapes do not reveal what a forward pass does,
so nothing here is guessed from a configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum


class EngineName(StrEnum):
    """An engine that rows are about."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    EMBEDDED = "embedded"


class Trait(StrEnum):
    """What a model may have beyond dense layers, full attention and one rotary table.

    A trait is refused, by its value, unless a row of the model's architecture has it.
    """

    EXPERTS = "mixture of experts"
    LATENT = "multi-head latent attention"
    WINDOWS = "sliding-window attention"
    CHUNKS = "chunked local attention"
    SINKS = "attention sinks"
    SOFT_CAPS = "logit soft-capping in attention"
    MROPE = "M-RoPE"
    SHARED_KV = "cross-layer K/V sharing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One row. Several rows may name one architecture: each adds traits, or engines."""

    name: str
    """As in `architectures` of a model's config.json."""
    model_type: str
    """As in `model_type` of the same file; the embedded engine goes by it."""
    models: str
    """What people call the models, for tables."""
    engines: frozenset[EngineName] = frozenset()
    """Where tests run it, with all of `traits`. Empty for one that is refused."""
    traits: frozenset[Trait] = frozenset()
    obstacle: str = ""
    """Why it cannot work yet. Such a row is refused, whatever the options say."""


def _run(
    name: str, model_type: str, models: str, *traits: Trait, engines: Iterable[EngineName]
) -> Architecture:
    return Architecture(
        name=name,
        model_type=model_type,
        models=models,
        engines=frozenset(engines),
        traits=frozenset(traits),
    )


def _refused(name: str, model_type: str, models: str, obstacle: str) -> Architecture:
    return Architecture(name=name, model_type=model_type, models=models, obstacle=obstacle)


_STATE = "some layers hold one running state instead of K/V by token"
_INDEXER = "a second cache of keys decides which tokens attention reads"
_COMPRESSED = "an entry of its cache stands for several tokens"

_ALL = frozenset(EngineName)
_VLLM = (EngineName.VLLM,)
_EMBEDDED = (EngineName.EMBEDDED,)
_EXPERTS_IN = (EngineName.VLLM, EngineName.EMBEDDED)

ARCHITECTURES: tuple[Architecture, ...] = (
    _run("LlamaForCausalLM", "llama", "Llama 2 and 3", engines=_ALL),
    _run("MistralForCausalLM", "mistral", "Mistral", engines=_ALL),
    _run("Qwen2ForCausalLM", "qwen2", "Qwen2, Qwen2.5", engines=_ALL),
    _run("Qwen3ForCausalLM", "qwen3", "Qwen3", engines=_ALL),
    _run(
        "MistralForCausalLM",
        "mistral",
        "Mistral 7B v0.1",
        Trait.WINDOWS,
        engines=_EMBEDDED,
    ),
    _run(
        "Qwen2ForCausalLM",
        "qwen2",
        "Qwen2 with windows",
        Trait.WINDOWS,
        engines=_EMBEDDED,
    ),
    _run(
        "Qwen3ForCausalLM",
        "qwen3",
        "Qwen3 with windows",
        Trait.WINDOWS,
        engines=_EMBEDDED,
    ),
    _run("Phi3ForCausalLM", "phi3", "Phi-3, Phi-4-mini, without windows", engines=_VLLM),
    _run("Qwen2MoeForCausalLM", "qwen2_moe", "Qwen2-MoE", Trait.EXPERTS, engines=_EXPERTS_IN),
    _run(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        "Qwen3-MoE",
        Trait.EXPERTS,
        engines=(*_EXPERTS_IN, EngineName.SGLANG),
    ),
    _run("MixtralForCausalLM", "mixtral", "Mixtral", Trait.EXPERTS, engines=_EXPERTS_IN),
    _run("OlmoeForCausalLM", "olmoe", "OLMoE", Trait.EXPERTS, engines=_EXPERTS_IN),
    _run("Glm4MoeForCausalLM", "glm4_moe", "GLM-4.5 to 4.7", Trait.EXPERTS, engines=_EXPERTS_IN),
    _run("MiniMaxM2ForCausalLM", "minimax_m2", "MiniMax-M2", Trait.EXPERTS, engines=_EXPERTS_IN),
    _run(
        "Qwen2_5_VLForConditionalGeneration",
        "qwen2_5_vl",
        "Qwen2.5-VL, requests without images",
        Trait.MROPE,
        engines=_VLLM,
    ),
    _run(
        "Qwen3VLForConditionalGeneration",
        "qwen3_vl",
        "Qwen3-VL, requests without images",
        Trait.MROPE,
        engines=_VLLM,
    ),
    _run("Gemma2ForCausalLM", "gemma2", "Gemma 2", Trait.WINDOWS, Trait.SOFT_CAPS, engines=_VLLM),
    _run("Gemma3ForCausalLM", "gemma3_text", "Gemma 3 (text)", Trait.WINDOWS, engines=_VLLM),
    _run(
        "GptOssForCausalLM",
        "gpt_oss",
        "gpt-oss",
        Trait.EXPERTS,
        Trait.WINDOWS,
        Trait.SINKS,
        engines=_VLLM,
    ),
    _run(
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        "DeepSeek-V2",
        Trait.EXPERTS,
        Trait.LATENT,
        engines=_VLLM,
    ),
    _run(
        "DeepseekV3ForCausalLM",
        "deepseek_v3",
        "DeepSeek-V3 and R1, Kimi-K2",
        Trait.EXPERTS,
        Trait.LATENT,
        engines=_VLLM,
    ),
    _run(
        "Glm4MoeLiteForCausalLM",
        "glm4_moe_lite",
        "GLM-4.7-Flash",
        Trait.EXPERTS,
        Trait.LATENT,
        engines=_VLLM,
    ),
    _refused("Qwen3NextForCausalLM", "qwen3_next", "Qwen3-Next", _STATE),
    _refused("Qwen3_5ForCausalLM", "qwen3_5_text", "Qwen3.5", _STATE),
    _refused("Qwen3_5ForConditionalGeneration", "qwen3_5", "Qwen3.5", _STATE),
    _refused("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", "Qwen3.5-MoE", _STATE),
    _refused("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", "Qwen3.5-MoE", _STATE),
    _refused("KimiLinearForCausalLM", "kimi_linear", "Kimi-Linear", _STATE),
    _refused("FalconH1ForCausalLM", "falcon_h1", "Falcon-H1", _STATE),
    _refused("GraniteMoeHybridForCausalLM", "granitemoehybrid", "Granite 4", _STATE),
    _refused("JambaForCausalLM", "jamba", "Jamba", _STATE),
    _refused("Lfm2ForCausalLM", "lfm2", "LFM2", _STATE),
    _refused("NemotronHForCausalLM", "nemotron_h", "Nemotron-H", _STATE),
    _refused("DeepseekV32ForCausalLM", "deepseek_v32", "DeepSeek-V3.2", _INDEXER),
    _refused("GlmMoeDsaForCausalLM", "glm_moe_dsa", "GLM-5", _INDEXER),
    _refused("DeepseekV4ForCausalLM", "deepseek_v4", "DeepSeek-V4", _COMPRESSED),
)
"""A row needs a test: the adapters' tests run every one of their rows on a tiny model."""


def rows_of(names: Iterable[str], engine: EngineName | None = None) -> Iterator[Architecture]:
    """The rows of these architectures; of those that one engine runs, if it is given."""
    wanted = set(names)
    for row in ARCHITECTURES:
        if row.name in wanted and (engine is None or engine in row.engines):
            yield row


def traits_taken(names: Iterable[str], engine: EngineName) -> frozenset[Trait]:
    """Every trait an engine was run with in these architectures."""
    return frozenset(trait for row in rows_of(names, engine) for trait in row.traits)


def model_types(engine: EngineName) -> tuple[str, ...]:
    """The `model_type` of every row an engine runs."""
    return tuple(dict.fromkeys(row.model_type for row in ARCHITECTURES if engine in row.engines))


def models_table(engine: EngineName) -> str:
    """What an engine's page says of models: Markdown, the refused ones last."""
    lines = ["| Models | Architecture | What is special |", "| --- | --- | --- |"]
    lines += [
        f"| {row.models} | `{row.name}` | {', '.join(sorted(row.traits)) or 'nothing'} |"
        for row in ARCHITECTURES
        if engine in row.engines
    ]
    lines += [
        f"| {row.models} | `{row.name}` | **refused**: {row.obstacle} |"
        for row in ARCHITECTURES
        if row.obstacle
    ]
    return "\n".join(lines)
