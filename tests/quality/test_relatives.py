"""Relatives of the reference start as near to it as they can, and learn what it says."""

from __future__ import annotations

import json

import pytest
import torch
from benchmarks.relatives.distilling import Lessons, distil, facts_found
from benchmarks.relatives.documents import TaughtBatch, Writing, written
from benchmarks.relatives.measuring import Results, read_results
from benchmarks.relatives.side_by_side import HEADINGS, table
from benchmarks.relatives.surgery import (
    RELATIVES,
    FromLatent,
    experts,
    latent,
    norms,
    plain,
    windows,
)
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from semblend.core.architectures import ARCHITECTURES, EngineName
from semblend.quality.certifying import candidates
from semblend.terminal.measured_engines import unshifted

TOKENS = torch.arange(3, 63)[None]
FULL_RANK = 2 * 2 * 16


@pytest.fixture(scope="module")
def reference():
    """A small model of the reference's shape: biases before attention, none behind it."""
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        attention_bias=True,
        tie_word_embeddings=True,
        initializer_range=0.2,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.k_proj.bias.normal_(std=0.3)
            layer.self_attn.q_proj.bias.normal_(std=0.3)
    return model


@torch.inference_mode()
def said(model):
    return model.eval()(TOKENS).logits


@pytest.mark.parametrize(
    "make",
    [
        lambda model: windows(model, tokens=64),
        experts,
        lambda model: latent(model, rank=FULL_RANK),
        lambda model: plain(latent(model, rank=FULL_RANK)),
    ],
    ids=["windows longer than the prompt", "copied experts", "latent of full rank", "composed"],
)
def test_what_changes_nothing_yet_says_what_the_reference_says(reference, make):
    torch.testing.assert_close(said(make(reference)), said(reference), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "make",
    [lambda model: windows(model, tokens=8), lambda model: latent(model, rank=8), norms],
    ids=["windows", "latent", "norms"],
)
def test_what_changes_something_says_something_else(reference, make):
    assert (said(make(reference)) - said(reference)).abs().max() > 0.01


def test_only_every_second_layer_has_a_window(reference):
    kinds = windows(reference, tokens=8).config.layer_types
    assert kinds == ["full_attention", "sliding_attention"] * 2


def test_experts_are_four_copies_and_a_shared_one_of_nothing(reference):
    block = experts(reference).model.layers[1].mlp
    down = reference.model.layers[1].mlp.down_proj.weight
    held = getattr(block.experts, "down_proj", None)
    copies = list(held) if held is not None else [one.down_proj.weight for one in block.experts]
    assert len(copies) == 4
    assert all(torch.equal(copy, down) for copy in copies)
    assert not block.shared_expert.down_proj.weight.any()


def test_norms_that_know_the_mean_lengths_are_nearer_than_norms_of_one(reference):
    def away(model):
        return float((said(model) - said(reference)).abs().mean())

    near = norms(reference, samples=[TOKENS])
    plain_norms = norms(reference, samples=[TOKENS])
    for layer in plain_norms.model.layers:
        torch.nn.init.ones_(layer.self_attn.q_norm.weight)
        torch.nn.init.ones_(layer.self_attn.k_norm.weight)
    assert away(near) < away(plain_norms)


def test_k_and_v_of_a_latent_have_its_rank_and_are_saved_as_llama(reference, tmp_path):
    model = latent(reference, rank=8)
    assert isinstance(model.model.layers[0].self_attn.k_proj, FromLatent)
    expected = said(model)
    plain(model).save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert type(loaded) is LlamaForCausalLM
    torch.testing.assert_close(said(loaded), expected, atol=1e-4, rtol=1e-4)
    attention = loaded.model.layers[2].self_attn
    both = torch.cat([attention.k_proj.weight, attention.v_proj.weight])
    assert torch.linalg.matrix_rank(both, rtol=1e-4) == 8


def two_texts():
    """Two texts, the second one padded."""
    torch.manual_seed(1)
    tokens = torch.randint(3, 96, (2, 24))
    return TaughtBatch(tokens=tokens, lengths=(24, 20), answers=(3, 2))


def test_a_relative_comes_nearer_to_what_the_reference_says(reference):
    student = latent(reference, rank=24)
    fixed = two_texts()
    learned = distil(
        student,
        reference,
        iter([fixed] * 30),
        Lessons(seconds=60, most_steps=30, rate=3e-3),
        held_out=[fixed],
        say=lambda text: None,
    )
    assert learned.steps == 30
    assert learned.last_loss < 0.7 * learned.first_loss
    assert all(not weight.requires_grad or weight.grad is None for weight in reference.parameters())


def test_facts_are_found_where_every_token_of_the_answer_is_the_likeliest(reference):
    batch = two_texts()
    for row, (length, answer) in enumerate(zip(batch.lengths, batch.answers, strict=True)):
        for at in range(length - answer, length):  # what the model itself says, greedily
            with torch.inference_mode():
                logits = reference(batch.tokens[row : row + 1, :at]).logits
            batch.tokens[row, at] = logits[0, -1].argmax()
    assert facts_found(reference, [batch]) == 1.0
    last = batch.lengths[0] - 1
    batch.tokens[0, last] = (batch.tokens[0, last] + 1) % 96
    assert facts_found(reference, [batch]) == 0.5


def test_documents_end_with_their_answers_and_differ_by_seed():
    job = Writing(model="models/semblend-reference-27m", rows=6, tokens=160)
    batch = written(job, 1)
    assert len(batch.lengths) == len(batch.answers) == 6
    assert max(batch.lengths) == batch.tokens.shape[1]
    for row, length in enumerate(batch.lengths):
        assert batch.tokens[row, length - 1] == 2, "the end token"
        assert not batch.tokens[row, length:].any()
    assert torch.equal(batch.tokens, written(job, 1).tokens)
    assert not torch.equal(batch.tokens[:, :50], written(job, 2).tokens[:, :50])


def test_each_is_certified_where_its_architecture_runs():
    served = {
        "windows": ("Qwen2ForCausalLM", EngineName.EMBEDDED),
        "experts": ("Qwen2MoeForCausalLM", EngineName.VLLM),
        "latent": ("LlamaForCausalLM", EngineName.VLLM),
        "norms": ("Qwen3ForCausalLM", EngineName.VLLM),
    }
    for one in RELATIVES:
        name, engine = served[one.name]
        assert one.certified_in == engine.value
        assert any(row.name == name and engine in row.engines for row in ARCHITECTURES)


def test_the_table_has_a_row_a_model_and_says_what_is_missing(tmp_path):
    best = candidates()[0]
    rows = [
        {"workload": "composed", "policy": spec, "right": right, "cold_right": 0.8}
        for spec, right in (("none", 0.4), (unshifted(best), 0.72), (best, 0.8))
    ]
    measured = Results(
        name="latent",
        changed="a latent",
        facts=0.98,
        deviation={"composed, none": [0.2, 0.4], "composed, depth_shift(none)": [0.1, 0.1]},
        leaderboard=rows,
        certified=best,
        engine="vllm",
        redteam="0 of 300",
    )
    measured.write(tmp_path)
    assert read_results(tmp_path) == measured
    assert json.loads((tmp_path / "results.json").read_text())["facts"] == 0.98
    lines = table([measured, Results(name="windows", changed="w", refusal="refused")]).splitlines()
    assert len(lines) == 4
    assert all(line.count("|") == len(HEADINGS) + 1 for line in lines)
    assert "50.0%, 90.0%, 100.0%" in lines[2]
    assert "0.300, 0.100" in lines[2]
    assert "refused" in lines[3]
