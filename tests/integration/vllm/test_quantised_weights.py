"""Weights in AWQ, GPTQ, int8 and fp8: K/V keeps its number format, so reuse works as ever.

What quantisation does change is who may share: it is in the namespace, and a certificate holds for
the quantisation it was measured with.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from vllm.engine.arg_utils import EngineArgs

from semblend.core.plan import Hole
from semblend.core.settings import Settings
from semblend.integration.loaded_model.model_identity import content_fingerprint
from semblend.integration.vllm.namespaces import engine_namespace
from semblend.integration.vllm.options import ConnectorOptions
from semblend.integration.vllm.setup import VllmSetup
from semblend.integration.vllm.support import cache_refusals, engine_refusals
from tests.certificates import certificate_of, write
from tests.integration.models import QUANTISED, folder_of, joined, random_tokens
from tests.integration.vllm.engines import WORKER, transfer_config

DOCUMENT = random_tokens(420, seed=171)
DONOR = joined(random_tokens(50, seed=172), DOCUMENT, random_tokens(20, seed=173))
TARGET = joined(random_tokens(110, seed=174), DOCUMENT, random_tokens(33, seed=175))
BFLOAT16 = {"dtype": "bfloat16"}
ONLINE = "fp8_per_channel"
"""Quantises plain weights as it loads them; of the fp8 kinds, the one that runs on any CPU."""
SERVED = [(name, {}) for name in QUANTISED] + [("llama", {"quantization": ONLINE})]


def all_holes(plan, tokens):
    if not plan.spans:
        return plan
    return replace(plan, recompute=(Hole(plan.spans[0].target_start, plan.end),))


def apart(found, expected):
    """The greatest difference, as a share of the greatest value."""
    found, expected = found.float(), expected.float()
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize(
    ("name", "more"), SERVED, ids=lambda value: value if isinstance(value, str) else None
)
def test_spans_move_and_holes_equal_cold(make_engine, name, more):
    engine = make_engine(name, engine={**BFLOAT16, **more})
    assert engine.scheduler.setup.namespace.cache_dtype == "bfloat16"
    engine.donate(DONOR)
    cold = engine.cold(TARGET)
    expected = engine.kv(cold, 0, len(TARGET))
    assert expected.dtype == torch.bfloat16
    warm = engine.run(TARGET, hints={"capture": False})
    assert warm.semblend["outcome"] == "materialised"
    assert warm.semblend["reused_tokens"] == len(DOCUMENT)
    (span,) = engine.scheduler_connector.loads[-1].copies
    placed = engine.kv(warm, span.target_start, span.target_end)
    own = expected[:, :, span.target_start : span.target_end]
    # K and V of layer 0 depend on token and position alone: they must be the model's own.
    assert apart(placed[0], own[0]) < 2e-2
    engine.forget_prefixes()
    engine.rewrite = all_holes
    everything = engine.run(TARGET, hints={"capture": False})
    assert everything.semblend["reused_tokens"] == 0
    assert apart(engine.kv(everything, 0, len(TARGET)), expected) < 3e-2
    assert everything.tokens == cold.tokens


def test_the_tiny_checkpoints_hold_the_plain_models_weights(make_engine):
    """A wrong order of the packed values would still be a model, and every other test green."""
    found = {}
    for name in ("llama", *QUANTISED):
        engine = make_engine(name, engine=BFLOAT16)
        found[name] = engine.kv(engine.cold(TARGET), 0, len(TARGET))[0].float().flatten()
    for name in QUANTISED:
        likeness = torch.nn.functional.cosine_similarity(found[name], found["llama"], dim=0)
        assert likeness > 0.98, name
        assert not torch.equal(found[name], found["llama"]), name


def config_of(name, **more):
    values = {"dtype": "bfloat16", "max_model_len": 2048, "worker_cls": WORKER, **more}
    return EngineArgs(
        model=name if Path(name).is_dir() else folder_of(name),
        skip_tokenizer_init=True,
        kv_transfer_config=transfer_config(),
        **values,
    ).create_engine_config()


def namespace_of(config):
    options = ConnectorOptions(mode="segmented_experimental")
    return engine_namespace(config, options, Settings())


def test_every_quantisation_is_a_namespace_of_its_own():
    some_layers = {"linear": {"weight": "fp8_per_channel_static"}, "ignore": ["re:.*mlp.*"]}
    configs = {
        "plain": config_of("llama"),
        **{name: config_of(name) for name in QUANTISED},
        # Kernels that no CPU has: what the configuration says is enough to keep them apart.
        **{
            method: config_of("llama", quantization=method)
            for method in (ONLINE, "fp8_per_tensor", "fp8_per_block", "mxfp8")
        },
        "some layers": config_of("llama", quantization="online", quantization_config=some_layers),
        "other layers": config_of(
            "llama", quantization="online", quantization_config={**some_layers, "ignore": []}
        ),
    }
    parts = {name: namespace_of(config).quantization for name, config in configs.items()}
    assert parts["plain"] == "none"
    assert len(set(parts.values())) == len(configs), parts
    again = namespace_of(config_of("llama", quantization=ONLINE))
    assert again.quantization == parts[ONLINE]


def certified(tmp_path, monkeypatch, name, config, **changes):
    folder = Path(folder_of(name))
    stated = transformers.AutoConfig.from_pretrained(folder)
    fingerprint = content_fingerprint(folder, stated)
    values = {"policy": "span_head(24)", "dtype": "bfloat16", **changes}
    for other in tmp_path.glob("*.json"):
        other.unlink()  # this certificate alone
    write(tmp_path, certificate_of(fingerprint, **values))
    monkeypatch.setenv("SEMBLEND_CERTIFICATE_DIR", str(tmp_path))
    return VllmSetup.of(config, ConnectorOptions(mode="segmented")).scheduler


def test_a_certificate_of_plain_weights_does_not_cover_weights_quantised_at_start(
    tmp_path, monkeypatch
):
    """The files are those that were certified; what computes is not."""
    assert certified(tmp_path, monkeypatch, "llama", config_of("llama")).certified
    quantised = config_of("llama", quantization=ONLINE)
    setup = certified(tmp_path, monkeypatch, "llama", quantised)
    assert not setup.certified
    assert not setup.may_load
    assert f"loads the weights with {ONLINE}" in setup.standing.detail


def test_a_certificate_of_weights_quantised_at_start_covers_those_alone(tmp_path, monkeypatch):
    quantised = config_of("llama", quantization=ONLINE)
    measured = certified(tmp_path, monkeypatch, "llama", quantised).standing.detail.split()[-1]
    data = {"quantization": measured}
    assert certified(tmp_path, monkeypatch, "llama", quantised, data=data).certified
    assert not certified(tmp_path, monkeypatch, "llama", config_of("llama"), data=data).certified


@pytest.mark.parametrize("name", QUANTISED)
def test_a_quantised_checkpoint_is_a_model_of_its_own_with_its_own_certificate(
    tmp_path, monkeypatch, name
):
    plain = certified(tmp_path, monkeypatch, "llama", config_of(name))
    assert not plain.certified, "that of the plain weights"
    assert certified(tmp_path, monkeypatch, name, config_of(name)).certified


def test_a_checkpoint_that_also_quantises_k_v_is_refused_by_name(tmp_path):
    """fp8 checkpoints often bring a scheme for the K/V cache; then K/V is not what it was."""
    folder = tmp_path / "fp8-kv"
    folder.mkdir()
    for file in Path(folder_of("llama-fp8")).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    stated = json.loads((folder / "config.json").read_text())
    stated["quantization_config"]["kv_cache_scheme"] = {
        "num_bits": 8,
        "type": "float",
        "symmetric": True,
        "strategy": "tensor",
        "dynamic": False,
    }
    (folder / "config.json").write_text(json.dumps(stated))
    options = ConnectorOptions(mode="segmented_experimental")
    assert not engine_refusals(config_of("llama-fp8"), options)
    (refusal,) = engine_refusals(config_of(str(folder)), options)
    assert "quantised K/V cache" in str(refusal)
    assert "--kv-cache-dtype fp8 or bfloat16" in str(refusal)
    assert not engine_refusals(config_of(str(folder), kv_cache_dtype="bfloat16"), options)


def test_a_cache_that_turns_out_quantised_is_refused_whatever_was_configured():
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
    )

    def cache(dtype):
        spec = FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=32, dtype=dtype)
        return KVCacheConfig(
            num_blocks=4, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["a"], spec)]
        )

    assert not cache_refusals(cache(torch.bfloat16))
    (refusal,) = cache_refusals(cache(torch.float8_e4m3fn))
    assert refusal.feature == "quantised K/V cache (float8_e4m3fn, NONE)"
