"""Engines with adapters: nested passes run the base model, whatever the step around them runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from vllm.lora.request import LoRARequest

from tests.integration.models import folder_of, joined, plain_model, random_tokens

DOCUMENT = random_tokens(420, seed=161)
DONOR = joined(random_tokens(50, seed=162), DOCUMENT, random_tokens(20, seed=163))
TARGET = joined(random_tokens(110, seed=164), DOCUMENT, random_tokens(33, seed=165))
OTHER = random_tokens(200, seed=166)
RANK = 4
# Two slots: vLLM's CPU kernels run tokens without an adapter with the last slot's, which is empty.
LORA = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2, "max_num_seqs": 4}


@pytest.fixture(scope="module")
def adapter(tmp_path_factory) -> LoRARequest:
    """A random adapter, large enough that every answer under it differs."""
    folder = Path(tmp_path_factory.mktemp("adapter"))
    torch.manual_seed(167)
    tensors = {}
    for name, module in plain_model("llama").named_modules():
        if name.endswith(("q_proj", "k_proj", "v_proj", "o_proj")):
            to, of = module.weight.shape
            tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(RANK, of) * 0.3
            tensors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(to, RANK) * 0.3
    save_file(tensors, folder / "adapter_model.safetensors")
    says = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
        "base_model_name_or_path": folder_of("llama"),
        "bias": "none",
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(says))
    return LoRARequest("random", 1, str(folder))


@pytest.fixture
def engine(make_engine):
    engine = make_engine("llama", engine=LORA)
    engine.forget_donors()
    engine.forget_prefixes()
    return engine


def together(engine, prompts, adapters, **options):
    """Several requests in one batch, each with its adapter or none."""
    outputs = engine.llm.generate(
        [{"prompt_token_ids": prompt.tolist()} for prompt in prompts],
        engine.sampling(**options),
        use_tqdm=False,
        lora_request=adapters,
    )
    engine.drain()
    return outputs


def test_a_base_request_reuses_as_in_an_engine_without_adapters(make_engine):
    answers = []
    for settings in ({}, LORA):
        engine = make_engine("llama", engine=settings)
        engine.donate(DONOR)
        answer = engine.run(TARGET)
        assert answer.semblend["reused_tokens"] > 400
        answers.append((answer.tokens, engine.kv(answer, 0, len(TARGET))))
    (without, plain), (with_lora, ours) = answers
    assert with_lora == without
    torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-5)


def test_holes_beside_an_adapters_request_are_the_base_models(engine, adapter):
    engine.donate(DONOR)
    alone = engine.run(TARGET)
    expected = engine.kv(alone, 0, len(TARGET))
    (adapted,) = together(engine, [OTHER], [adapter])
    (plain,) = together(engine, [OTHER], [None])
    assert adapted.outputs[0].token_ids != plain.outputs[0].token_ids
    engine.forget_prefixes()

    first, second = together(engine, [OTHER, TARGET], [adapter, None])

    report = second.kv_transfer_params["semblend"]
    assert report["reused_tokens"] == alone.semblend["reused_tokens"]
    assert report["hole_tokens"] == alone.semblend["hole_tokens"] > 0
    assert tuple(second.outputs[0].token_ids) == alone.tokens
    assert first.outputs[0].token_ids == adapted.outputs[0].token_ids
    written = engine.scheduler_connector.kv_of(second.request_id, 0, len(TARGET))
    torch.testing.assert_close(written, expected, atol=1e-5, rtol=1e-5)


def test_an_adapters_request_is_computed_and_never_a_donor(engine, adapter):
    engine.donate(DONOR)
    (output,) = together(engine, [TARGET], [adapter])
    report = output.kv_transfer_params["semblend"]
    assert (report["reason"], report["detail"]) == ("unsupported", "lora")
    engine.forget_donors()
    together(engine, [DONOR], [adapter])
    assert engine.run(TARGET).semblend["outcome"] == "cold"


def test_a_shadow_pass_after_its_adapter_was_unloaded_leaves_the_engine_working(engine, adapter):
    """A pass in a step without a forward finds the mapping of a step that is long over."""
    from semblend.integration.worker.sequences import VirtualSequence, block_table

    (adapted,) = together(engine, [OTHER], [adapter], max_tokens=1)
    assert engine.llm.llm_engine.remove_lora(adapter.lora_int_id)
    item = VirtualSequence(tokens=TARGET, start=0, end=40, blocks=block_table((1, 2)))
    logits = engine.worker.nested.logits(item, last=8)
    cold = engine.cold(TARGET[:40], max_tokens=1)
    assert logits.shape == (8, 512)
    assert int(logits[-1].argmax()) == cold.tokens[0]
    (again,) = together(engine, [OTHER], [adapter], max_tokens=1)
    assert again.outputs[0].token_ids == adapted.outputs[0].token_ids
