"""What was not proven is refused by name: at start, or for one request."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from vllm.engine.arg_utils import EngineArgs

from semblend.core.architectures import Trait
from semblend.core.errors import SettingsError, UnsupportedModelError, UnsupportedRotaryError
from semblend.integration.refusals import UnsupportedEngineError
from semblend.integration.vllm.connector_v1 import SemBlendConnectorV1
from semblend.integration.vllm.nested_pass import NestedPass
from semblend.integration.vllm.options import ConnectorOptions
from semblend.integration.vllm.rotary import table_from_model
from semblend.integration.vllm.support import (
    cache_refusals,
    engine_refusals,
    layer_refusals,
)
from semblend.integration.vllm.versions import VERSIONS
from semblend.kv.rotary_spec import Pairing
from tests.integration.models import folder_of, joined, random_tokens
from tests.integration.vllm.engines import WORKER, Engine, transfer_config

OPTIONS = ConnectorOptions(mode="segmented_experimental")


@pytest.fixture(scope="module")
def config():
    """A real configuration of a supported engine."""
    return EngineArgs(
        model=folder_of("llama"),
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        max_model_len=1024,
        block_size=32,
        worker_cls=WORKER,
        kv_transfer_config=transfer_config(mode="segmented_experimental"),
    ).create_engine_config()


@pytest.fixture
def strict(monkeypatch):
    """What is refused does not start; `test_starting` is about what happens otherwise."""
    monkeypatch.setenv("SEMBLEND_STRICT_START", "1")


def changed(config, path, value):
    """The configuration with one attribute changed, the original left alone."""
    copied = copy.copy(config)
    target = copied
    *parents, name = path.split(".")
    for parent in parents:
        child = copy.copy(getattr(target, parent))
        object.__setattr__(target, parent, child)
        target = child
    object.__setattr__(target, name, value)
    return copied


def test_a_supported_engine_is_not_refused(config):
    assert engine_refusals(config, OPTIONS) == []


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("parallel_config.pipeline_parallel_size", 2, "pipeline parallelism"),
        ("parallel_config.data_parallel_size", 2, "data parallelism"),
        ("parallel_config.decode_context_parallel_size", 2, "decode context parallelism"),
        ("parallel_config.prefill_context_parallel_size", 2, "prefill context parallelism"),
        ("parallel_config.enable_dbo", True, "dual batch overlap"),
        ("speculative_config", SimpleNamespace(method="mtp"), "speculative decoding (mtp)"),
        ("cache_config.cache_dtype", "fp8_e5m2", "quantised K/V cache"),
        ("cache_config.kv_sharing_fast_prefill", True, "cross-layer K/V sharing"),
        ("kv_transfer_config.kv_load_failure_policy", "fail", "kv_load_failure_policy"),
        ("kv_transfer_config.kv_role", "kv_producer", "kv_role"),
        ("parallel_config.worker_cls", "vllm.v1.worker.cpu_worker.CPUWorker", "worker class"),
        ("model_config.runner_type", "pooling", "pooling models"),
        ("model_config.hf_text_config.sliding_window", 128, "sliding-window"),
        ("model_config.hf_text_config.attention_chunk_size", 128, "chunked local attention"),
        ("model_config.hf_text_config.attn_logit_softcapping", 30.0, "soft-capping"),
        ("model_config.hf_text_config.num_kv_shared_layers", 2, "cross-layer K/V sharing"),
        ("model_config.hf_text_config.kv_lora_rank", 64, "expected qk_rope_head_dim"),
        ("model_config.hf_config.architectures", ["SomeForCausalLM"], "architecture Some"),
        ("model_config.is_encoder_decoder", True, "encoder-decoder"),
        (
            "model_config.hf_text_config.rope_parameters",
            {"rope_type": "default", "mrope_section": [1, 1], "rope_theta": 1e4},
            "M-RoPE",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_engine_with_an_unproven_feature_is_refused_by_name(config, path, value, named):
    refusals = engine_refusals(changed(config, path, value), OPTIONS)
    assert any(named in str(refusal) for refusal in refusals), list(map(str, refusals))


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_frequencies_by_length_are_taken_without_a_certificate(config, kind):
    """A certificate does not say which length class it was measured with."""
    rope = {"rope_type": kind, "factor": 2.0, "rope_theta": 1e4}
    config = changed(config, "model_config.hf_text_config.rope_parameters", rope)
    assert engine_refusals(config, OPTIONS) == []
    (refusal,) = engine_refusals(config, ConnectorOptions(mode="segmented"))
    assert "under a certificate" in str(refusal)


class Saying:
    """A configuration that answers one question differently; those are properties in vLLM."""

    def __init__(self, config, **answers):
        self._config = config
        self.__dict__.update(answers)

    def __getattr__(self, name):
        return getattr(self._config, name)


@pytest.mark.parametrize(
    ("question", "named"),
    [
        ("is_hybrid", "hybrid or state-space"),
        ("use_mla", "multi-head latent attention"),
        ("uses_alibi", "ALiBi"),
        ("uses_mrope", "M-RoPE"),
    ],
)
def test_a_model_of_an_unproven_kind_is_refused_by_name(config, question, named):
    model = Saying(config.model_config, **{question: True})
    refusals = engine_refusals(Saying(config, model_config=model), OPTIONS)
    assert any(named in str(refusal) for refusal in refusals), list(map(str, refusals))


def test_hybrid_caches_are_refused_by_name(config):
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        SlidingWindowSpec,
    )

    shape = {"block_size": 32, "num_kv_heads": 2, "head_size": 32, "dtype": torch.float32}
    full = KVCacheGroupSpec(["layer.0"], FullAttentionSpec(**shape))
    windowed = KVCacheGroupSpec(["layer.1"], SlidingWindowSpec(**shape, sliding_window=64))
    chunked = KVCacheGroupSpec(["layer.0"], FullAttentionSpec(**shape, attention_chunk_size=64))

    def named(*groups, taken=()):
        config = KVCacheConfig(num_blocks=4, kv_cache_tensors=[], kv_cache_groups=list(groups))
        return " ".join(map(str, cache_refusals(config, taken)))

    assert named(full) == ""
    assert "2 K/V cache groups" in named(full, windowed)
    assert "SlidingWindowSpec" in named(windowed)
    assert "chunked" in named(chunked)
    assert "--disable-hybrid-kv-cache-manager" in named(full, windowed, taken=[Trait.WINDOWS])


def test_latent_rows_and_merged_windows_are_taken_where_the_table_says_so(config):
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MLAAttentionSpec,
    )

    shape = {"block_size": 32, "head_size": 32, "dtype": torch.float32}
    for spec, trait in (
        (MLAAttentionSpec(**shape, num_kv_heads=1), Trait.LATENT),
        (FullAttentionSpec(**shape, num_kv_heads=2, sliding_window=64), Trait.WINDOWS),
    ):
        groups = [KVCacheGroupSpec(["layer.0"], spec)]
        cache = KVCacheConfig(num_blocks=4, kv_cache_tensors=[], kv_cache_groups=groups)
        assert cache_refusals(cache)
        assert not cache_refusals(cache, [trait])


def test_unproven_attention_layers_are_refused_by_name(make_engine):
    engine = make_engine("llama")
    layers = engine.worker.access.layers
    assert layer_refusals(layers) == []
    first = copy.copy(layers[0])
    first.impl = copy.copy(first.impl)
    first.impl.sinks = object()
    first.impl.alibi_slopes = object()
    first.indexer = object()
    sparse = "a sparse-attention indexer"
    named = {str(refusal) for refusal in layer_refusals([first])}
    assert named == {"attention sinks", "ALiBi positions", sparse}
    named = {str(refusal) for refusal in layer_refusals([first], [Trait.SINKS])}
    assert named == {"ALiBi positions", sparse}


def test_layers_that_share_k_v_or_cannot_be_written_are_refused_by_name(make_engine):
    first = copy.copy(make_engine("llama").worker.access.layers[0])
    first.impl = SimpleNamespace()
    first.kv_sharing_target_layer_name = "model.layers.0.self_attn.attn"
    assert {str(r) for r in layer_refusals([first])} == {
        "cross-layer K/V sharing",
        "an attention backend that does not write K/V separately",
    }


class Rotary(torch.nn.Module):
    """What vLLM's rotary modules look like from outside."""

    is_neox_style = True

    def __init__(self, factor):
        super().__init__()
        self.cos_sin_cache = torch.full((8, 4), factor)


def test_rotary_modules_that_k_cannot_follow_are_refused_by_name():
    layer = torch.nn.Identity()
    with pytest.raises(UnsupportedRotaryError, match="no rotary module"):
        table_from_model(torch.nn.ModuleList([layer]), [layer])
    with pytest.raises(UnsupportedRotaryError, match="several rotary modules that differ"):
        table_from_model(torch.nn.ModuleList([Rotary(0.5), Rotary(0.25), layer]), [layer])
    with pytest.raises(UnsupportedRotaryError, match="not part of the model"):
        table_from_model(torch.nn.ModuleList([Rotary(0.5), Rotary(0.25)]), [layer])
    with pytest.raises(UnsupportedRotaryError, match="Rotary: K can be moved only for"):
        table_from_model(torch.nn.ModuleList([Rotary(0.5), Rotary(0.5)]), [layer])


def test_a_row_of_latents_rotates_as_wide_as_it_declares():
    from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

    module = RotaryEmbedding.__new__(RotaryEmbedding)
    torch.nn.Module.__init__(module)
    module.is_neox_style, module.cos_sin_cache = False, torch.rand(16, 8) + 0.1
    layer = SimpleNamespace(kv_lora_rank=24, qk_rope_head_dim=8)
    table = table_from_model(torch.nn.ModuleList([module]), [layer])
    assert (table.offset, table.rotary_dim, table.pairing) == (24, 8, Pairing.INTERLEAVED)
    layer.qk_rope_head_dim = 16
    with pytest.raises(UnsupportedRotaryError, match="qk_rope_head_dim=16"):
        table_from_model(torch.nn.ModuleList([module]), [layer])


@dataclass
class Group:
    """What vLLM's groups of attention layers look like from outside."""

    kernel_block_size: int | None = None
    metadata_builders: tuple[object, ...] = ()


@pytest.mark.parametrize(
    ("groups", "named"),
    [
        ([[Group(kernel_block_size=16)]], "kernel blocks smaller"),
        ([[Group()], [Group()]], "2 K/V cache groups"),
    ],
)
def test_attention_the_nested_pass_was_not_proven_with_is_refused_by_name(config, groups, named):
    with pytest.raises(UnsupportedModelError, match=named):
        NestedPass(SimpleNamespace(attn_groups=groups), config, {})


def test_an_engine_whose_k_we_would_move_wrongly_does_not_start(engines, monkeypatch, strict):
    """The start-up proof on the real model, with a table whose angles are a little too large."""
    from semblend.integration.vllm import rotary

    engines.close()
    proper = rotary.table_from_model

    def wrong(model, layers):
        (found,) = {id(m): m for m in model.modules() if hasattr(m, "cos_sin_cache")}.values()
        rows = found.cos_sin_cache.clone()
        found.cos_sin_cache.copy_(torch.cat([rows[:1], rows[2:], rows[-1:]]))
        try:
            return proper(model, layers)
        finally:
            found.cos_sin_cache.copy_(rows)

    monkeypatch.setattr(rotary, "table_from_model", wrong)
    with pytest.raises(UnsupportedRotaryError, match="self-test: K of layer"):
        Engine("llama")


def test_an_engine_that_rotates_only_the_first_token_right_does_not_start(engines, strict):
    """As vLLM's rotary kernel for CPUs does with rows of latents and plain rotary positions."""
    engines.close()
    with pytest.raises(UnsupportedRotaryError, match="self-test: K of layer"):
        Engine("glm-flash", engine={"compilation_config": {}})


@pytest.mark.parametrize("model", ["deepseek-v2", "gemma3"])
def test_what_only_the_model_says_about_rotation_needs_the_model(engines, strict, model):
    engines.close()
    with pytest.raises(UnsupportedRotaryError, match="execution=nested"):
        Engine(model, mode="request_only_experimental")


def test_a_ladder_without_prefix_caching_is_refused_by_name(engines, strict):
    engines.close()
    without = {"worker_cls": "auto", "enable_prefix_caching": False}
    with pytest.raises(UnsupportedEngineError, match="prefix caching off"):
        Engine("llama", execution="staged", engine=without)


def test_unknown_versions_are_refused_by_name():
    assert VERSIONS.refusals("0.32.0") == []
    (refusal,) = VERSIONS.refusals("0.40.0")
    assert "vLLM 0.40.0" in str(refusal)


def test_a_refused_engine_does_not_start_and_says_why(engines, strict):
    engines.close()
    with pytest.raises(UnsupportedEngineError, match=r"worker class.*--worker-cls"):
        Engine("llama", engine={"worker_cls": "auto"})


def test_an_engine_that_would_serve_without_the_connector_does_not_start(
    engines, monkeypatch, strict
):
    """vLLM puts its own connector in the place of one that it knows by its name alone.

    With `kv_connector_module_path` it looks for its own there, and does not start either.
    """
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    engines.close()
    monkeypatch.setattr(KVConnectorFactory, "_registry", dict(KVConnectorFactory._registry))
    KVConnectorFactory.register_connector("Ours", "tests.integration.vllm.probe", "ProbeConnector")
    by_name = KVTransferConfig(
        kv_connector="Ours",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={"mode": "segmented_experimental"},
    )
    options = {"kv_offloading_size": 1.0, "kv_transfer_config": by_name}
    with pytest.raises(UnsupportedEngineError, match=r"--kv-offloading-size.*never asks SemBlend"):
        Engine("llama", engine=options)
    with pytest.raises(AttributeError, match="OffloadingConnector not found"):
        Engine("llama", engine={"kv_offloading_size": 1.0})


def test_discovery_runs_where_loading_is_refused(make_engine):
    engine = make_engine("llama", mode="discovery_only", engine={"worker_cls": "auto"})
    assert engine.run(random_tokens(100, seed=1)).semblend["outcome"] == "cold"


def test_wrong_keys_and_values_are_refused_with_what_would_be_right():
    with pytest.raises(SettingsError, match="did you mean min_similarity"):
        ConnectorOptions.from_extra_config({"min_similarty": 0.5})
    with pytest.raises(SettingsError, match="mode = 'segmentd'"):
        ConnectorOptions.from_extra_config({"mode": "segmentd"})
    with pytest.raises(SettingsError, match="donor_folder"):
        ConnectorOptions.from_extra_config({"disk_donor_bytes": 1 << 20})


# -- one request -----------------------------------------------------------------------

DOCUMENT = random_tokens(420, seed=91)
DONOR = joined(random_tokens(50, seed=92), DOCUMENT, random_tokens(20, seed=93))
TARGET = joined(random_tokens(110, seed=94), DOCUMENT, random_tokens(33, seed=95))


def test_requests_that_cannot_be_served_are_computed_and_say_why(make_engine):
    engine = make_engine("llama", min_prompt_tokens=66)
    engine.donate(DONOR)
    cold = engine.cold(TARGET)
    plain = engine.run(TARGET, prompt_logprobs=1)
    assert plain.tokens == cold.tokens
    assert plain.semblend["reason"] == "unsupported"
    assert plain.semblend["detail"] == "skip_reading_prefix_cache"
    assert plain.cached_tokens == 0


@pytest.mark.parametrize(
    ("attribute", "value", "named"),
    [
        ("mm_features", [object()], "multimodal"),
        ("prompt_embeds", object(), "prompt_embeds"),
        ("pooling_params", object(), "pooling"),
        ("resumable", True, "streaming_session"),
        ("skip_reading_prefix_cache", True, "skip_reading_prefix_cache"),
    ],
)
def test_an_unservable_request_is_refused_by_name(make_engine, attribute, value, named):
    from vllm.v1.request import Request

    from semblend.integration.vllm.support import request_refusal

    engine = make_engine("llama", min_prompt_tokens=66)
    request = Request(
        request_id="r-1",
        prompt_token_ids=TARGET.tolist(),
        sampling_params=engine.sampling(),
        pooling_params=None,
    )
    assert request_refusal(request) is None
    setattr(request, attribute, value)
    assert request_refusal(request) == named
    assert engine.scheduler_connector.get_num_new_matched_tokens(request, 0) == (0, False)
    engine.scheduler.requests.clear()


def shared_with(other_folder, *, mode):
    """SemBlend beside vLLM's own example, which like LMCache's names K/V by token ids."""
    from vllm.config import KVTransferConfig

    ours = {
        "kv_connector": "ProbeConnector",
        "kv_connector_module_path": "tests.integration.vllm.probe",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"mode": mode},
    }
    other = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(other_folder)},
    }
    return KVTransferConfig(
        kv_connector="MultiConnector",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={"connectors": [other, ours]},
    )


@pytest.mark.parametrize("mode", ["segmented_experimental", "exact_prefix"])
def test_the_connector_is_never_a_child_of_another(engines, tmp_path, mode, strict):
    """A MultiConnector's other children would save approximate K/V under exact keys."""
    engines.close()
    shared = shared_with(tmp_path, mode=mode)
    named = "MultiConnector with ExampleConnector .*token ids"
    with pytest.raises(UnsupportedEngineError, match=named):
        Engine("llama", engine={"kv_transfer_config": shared})


def test_discovery_may_stand_beside_another_connector(make_engine, tmp_path):
    """It finds donors and loads nothing, so there is nothing approximate to store."""
    shared = shared_with(tmp_path, mode="discovery_only")
    engine = make_engine("llama", engine={"kv_transfer_config": shared, "worker_cls": "auto"})
    document = random_tokens(600, seed=1)
    engine.run(joined(random_tokens(40, seed=2), document))
    moved = engine.run(joined(random_tokens(70, seed=3), document))
    assert moved.semblend["outcome"] == "discovery_only"
    assert moved.cached_tokens == 0
    assert not engine.scheduler_connector.loads


def test_the_public_class_is_what_the_documents_name():
    assert SemBlendConnectorV1.__module__ == "semblend.integration.vllm.connector_v1"
