"""Every architecture and rotary kind of the table, on the real engine."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from PIL import Image
from vllm.engine.arg_utils import EngineArgs

from semblend.core.architectures import ARCHITECTURES, EngineName, Trait, traits_taken
from semblend.core.faults import planted
from semblend.core.plan import Hole
from semblend.integration.vllm.namespaces import engine_namespace
from semblend.integration.vllm.options import ConnectorOptions
from semblend.planning.shadow_watch import ShadowWatch
from tests.integration.models import (
    SERVED,
    architecture_of,
    folder_of,
    joined,
    plain_model,
    random_tokens,
    reads_images,
)
from tests.oracles.attention import lent_to, rotating, segmented_forward
from tests.oracles.composed_model import compose

DOCUMENT = random_tokens(420, seed=71)
# Far apart, so that a wrong frequency shows; beyond what YaRN and llama3 were "trained" on.
DONOR = joined(random_tokens(50, seed=72), DOCUMENT, random_tokens(20, seed=73))
TARGET = joined(random_tokens(1200, seed=74), DOCUMENT, random_tokens(33, seed=75))
NEAR = joined(random_tokens(70, seed=76), DOCUMENT[:200], random_tokens(9, seed=77))
"""Short, for what a slow reference computes too."""
UNMOVED = {"capture": False}


def traits_of(name):
    return traits_taken([architecture_of(name)], EngineName.VLLM)


NEEDS_TORCHVISION = pytest.mark.skipif(
    find_spec("torchvision") is None, reason="run scripts/vllm_env.sh for torchvision"
)
NAMES = [
    pytest.param(name, marks=NEEDS_TORCHVISION if reads_images(name) else ())
    for name in SERVED
    if name != "llama"
]
KNOWN_TO_THE_REFERENCE = {Trait.EXPERTS, Trait.MROPE}


@pytest.fixture
def make_sampling(make_engine, monkeypatch):
    """An engine that compares all it reuses with cold, and starts with nothing refused."""
    monkeypatch.setenv("SEMBLEND_SHADOW_RATE", "1")
    monkeypatch.setenv("SEMBLEND_STRICT_START", "1")

    def make(name):
        engine = make_engine(name, audit_path=None)
        engine.forget_donors()
        engine.forget_prefixes()
        return engine

    return make


def all_holes(plan, tokens):
    if not plan.spans:
        return plan
    return replace(plan, recompute=(Hole(plan.spans[0].target_start, plan.end),))


def test_every_row_of_the_table_has_a_model_here():
    rows = {row.name for row in ARCHITECTURES if EngineName.VLLM in row.engines}
    assert {architecture_of(name) for name in SERVED} == rows


@pytest.mark.parametrize("name", NAMES)
def test_spans_move_as_the_model_rotates_and_holes_equal_cold(make_sampling, name):
    engine = make_sampling(name)
    engine.donate(DONOR)
    cold = engine.cold(TARGET)
    expected = engine.kv(cold, 0, len(TARGET))
    warm = engine.run(TARGET, hints=UNMOVED)
    (span,) = engine.scheduler_connector.loads[-1].copies
    assert span.delta == 1150
    placed = engine.kv(warm, span.target_start, span.target_end)
    own = expected[:, :, span.target_start : span.target_end]
    # K/V of layer 0 depends on token and position alone: it must be the model's own.
    torch.testing.assert_close(placed[0], own[0], atol=5e-4, rtol=1e-4)
    engine.forget_prefixes()
    engine.rewrite = all_holes
    everything = engine.run(TARGET, hints=UNMOVED)
    assert everything.tokens == cold.tokens
    torch.testing.assert_close(
        engine.kv(everything, 0, len(TARGET)), expected, atol=5e-4, rtol=1e-3
    )
    if Trait.MROPE in traits_of(name):
        _a_request_with_an_image_is_computed_and_no_donor(engine)
    if traits_of(name):  # all else is tested with Llama, which it differs from in numbers alone
        _keeps_every_promise(engine, name)


def _keeps_every_promise(engine, name):
    """What Llama has whole files of tests for, once, in the engine that is running anyway."""
    engine.rewrite = None
    if traits_of(name) <= KNOWN_TO_THE_REFERENCE:
        _holes_equal_a_float64_reference(engine, name)
    else:
        _a_composition_equals_another_implementations(engine, name)
    _a_donors_k_is_read_as_at_position_0(engine)
    _a_probing_policy_runs(engine)
    _a_sample_of_a_cold_region_finds_no_difference(engine)
    _a_fault_ends_cold_and_what_is_exact_stays_exact(engine)


def _a_request_with_an_image_is_computed_and_no_donor(engine):
    """Positions after an image are not those of text."""
    text = " ".join(f"w{number}" for number in DOCUMENT)
    prompt = {
        "prompt": f"w9 <|vision_start|><|image_pad|><|vision_end|> {text}",
        "multi_modal_data": {"image": Image.new("RGB", (56, 56), "red")},
    }
    held = len(engine.worker.donors)
    for _ in range(2):
        (output,) = engine.llm.generate([prompt], engine.sampling(), use_tqdm=False)
        engine.drain()
        report = output.kv_transfer_params["semblend"]
        assert (report["reason"], report["detail"]) == ("unsupported", "multimodal")
        assert report["reused_tokens"] == 0
        engine.forget_prefixes()
    assert len(engine.worker.donors) == held


def _holes_equal_a_float64_reference(engine, name):
    engine.forget_donors()
    lent = engine.kv(engine.donate(DONOR), 0, len(DONOR)).double()
    warm = engine.run(NEAR, hints=UNMOVED)
    load = engine.scheduler_connector.loads[-1]
    assert load.copies
    assert load.hole_tokens
    model = plain_model(name)
    config = model.config.get_text_config()
    theta, width = config.rope_parameters["rope_theta"], rotating(config)
    donors = {span.donor_id: lent for span in load.copies}
    expected = segmented_forward(model, NEAR, lent_to(load.copies, donors, theta, width))
    got = engine.kv(warm, 0, len(NEAR)).double()
    torch.testing.assert_close(got[:, 0], expected.keys, atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(got[:, 1], expected.values, atol=2e-3, rtol=1e-3)
    assert warm.tokens[0] == int(expected.logits[-1].argmax())


def _a_composition_equals_another_implementations(engine, name):
    engine.rewrite = None
    engine.forget_donors()
    engine.donate(DONOR)
    warm = engine.run(NEAR, hints=UNMOVED)
    load = engine.scheduler_connector.loads[-1]
    assert load.hole_tokens
    expected = compose(plain_model(name), DONOR, NEAR, load.copies)
    got = engine.kv(warm, 0, len(NEAR)).double()
    torch.testing.assert_close(got, expected.kv, atol=2e-3, rtol=1e-3)
    assert warm.tokens[0] == int(expected.logits[-1].argmax())


def _a_donors_k_is_read_as_at_position_0(engine):
    """Depth drift is measured by it. On layer 0 it depends on the token alone."""
    read = engine.worker.kv_of_donor(DONOR)
    first = {token: place for place, token in reversed(list(enumerate(DONOR.tolist())))}
    pairs = [(first[token], at) for at, token in enumerate(DONOR.tolist()) if first[token] != at]
    assert len(pairs) > 10
    earlier, later = map(list, zip(*pairs, strict=True))
    torch.testing.assert_close(read[0][:, earlier], read[0][:, later], atol=5e-4, rtol=1e-3)


def _a_probing_policy_runs(engine):
    engine.forget_prefixes()
    hints = {"policy": "query_attention(0.1, 16)", "capture": False}
    said = engine.run(TARGET, hints=hints).semblend
    assert said["outcome"] == "materialised"
    assert said["recomputed_tokens"] > 0


def _a_sample_of_a_cold_region_finds_no_difference(engine):
    engine.forget_prefixes()
    taken = []

    class Recording(ShadowWatch):
        def observe(self, key, *, divergence, disagreement):
            taken.append((divergence, disagreement))
            return super().observe(key, divergence=divergence, disagreement=disagreement)

    engine.scheduler.shadows.watch = Recording()
    engine.rewrite = all_holes
    engine.run(NEAR, hints=UNMOVED)
    assert taken == []  # nothing approximate was in it
    engine.rewrite = None
    engine.scheduler_connector.rewrite_load = lambda load: replace(
        load, copies=(), holes=(Hole(load.start, load.end),)
    )
    engine.forget_prefixes()
    engine.run(NEAR, hints=UNMOVED)
    engine.scheduler_connector.rewrite_load = None
    ((kl, differs),) = taken
    assert kl < 1e-6
    assert differs == 0.0


def _a_fault_ends_cold_and_what_is_exact_stays_exact(engine):
    cold = engine.cold(NEAR)
    for point in ("nested_pass", "copy"):
        engine.forget_prefixes()
        with planted(f"{point}:1:1") as faults:
            failed = engine.run(NEAR, hints=UNMOVED)
        assert sum(faults.fired.values()) == 1
        assert failed.tokens == cold.tokens
        assert failed.semblend["reused_tokens"] == 0
    engine.forget_prefixes()
    assert engine.run(NEAR, hints=UNMOVED).semblend["approximate"]
    exact = engine.run(NEAR, hints={"reuse": False, "capture": False})
    size = engine.worker.access.block_size
    assert exact.cached_tokens == 70 // size * size, "only the exact head is shared"
    assert exact.tokens == cold.tokens


def test_engines_with_other_length_classes_share_no_donors():
    """The same model has other K in them."""

    def rope(most):
        config = EngineArgs(
            model=folder_of("phi3-long"), skip_tokenizer_init=True, max_model_len=most
        ).create_engine_config()
        options = ConnectorOptions(mode="discovery_only")
        return engine_namespace(config, options, options.settings()).rope

    assert rope(2048) == rope(4096) != rope(512)


def test_bfloat16_moves_k_within_its_rounding(make_engine):
    engine = make_engine("llama", engine={"dtype": "bfloat16"})
    target = joined(random_tokens(110, seed=76), DOCUMENT, random_tokens(33, seed=77))
    engine.donate(DONOR)
    cold = engine.cold(target)
    expected = engine.kv(cold, 0, len(target)).float()
    warm = engine.run(target, hints={"capture": False})
    (span,) = engine.scheduler_connector.loads[-1].copies
    placed = engine.kv(warm, span.target_start, span.target_end).float()
    own = expected[0, 0, span.target_start : span.target_end]
    scale = own.abs().max()
    assert (placed[0, 0] - own).abs().max() / scale < 2e-2
    engine.forget_prefixes()
    engine.rewrite = all_holes
    everything = engine.run(target, hints={"capture": False})
    got = engine.kv(everything, 0, len(target)).float()
    assert everything.tokens == cold.tokens
    assert (got - expected).abs().max() / expected.abs().max() < 2e-2
