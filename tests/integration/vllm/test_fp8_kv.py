"""fp8 K/V: what stays is copied bit for bit, what moves is moved within the format."""

from __future__ import annotations

import os

import pytest
import torch

from semblend.core.faults import planted
from semblend.core.namespace import NONE
from semblend.integration.vllm import namespaces
from semblend.kv.numbers import LARGEST, decoded
from tests.integration.models import plain_model
from tests.integration.vllm.test_segmented import DONOR, TARGET, all_holes
from tests.oracles.attention import lent_to, segmented_forward

LAST_DIGIT = 2.0**-4
"""Half of e4m3's last digit, of the number itself."""
# Scale 1; one a tensor; one a head. A CPU's kernels know one a tensor: the largest of the heads'.
MODELS = {"llama": "float32", "llama-fp8kv": "bfloat16", "llama-fp8heads": "bfloat16"}
if "TEST_VLLM_RUNNER" in os.environ:
    MODELS = {"llama": "float32"}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return request.param


@pytest.fixture
def engine(make_engine, model):
    options = {"kv_cache_dtype": "fp8", "dtype": MODELS[model]}
    engine = make_engine(model, engine=options)
    engine.forget_donors()
    engine.forget_prefixes()
    return engine


def stored(engine, answer, start, end):
    """The cache's bytes."""
    connector = engine.scheduler_connector
    blocks = connector.blocks[connector.internal(answer.request_id)]
    return engine.worker.access.read(blocks, start, end).clone()


def clipped(engine):
    """vLLM's own counter of it."""
    name = "vllm:semblend_clipped_numbers"
    return sum(m.value for m in engine.llm.get_metrics() if m.name == name)


def test_all_holes_and_a_donor_that_stays_equal_cold_bit_for_bit(engine):
    engine.donate(DONOR)
    for prompt, rewrite in ((TARGET, all_holes), (DONOR, None)):
        cold = engine.cold(prompt)
        expected = stored(engine, cold, 0, len(prompt) - 1)
        engine.rewrite = rewrite
        warm = engine.run(prompt, hints={"capture": False})
        assert engine.scheduler_connector.loads[-1].request_id.startswith(warm.request_id)
        assert warm.tokens == cold.tokens
        assert torch.equal(stored(engine, warm, 0, len(prompt) - 1), expected)


def test_what_moves_is_rotated_in_fp32_and_rounded_once(engine):
    donor = engine.donate(DONOR)
    kept = stored(engine, donor, 50, 470)
    warm = engine.run(TARGET)
    (span,) = engine.scheduler_connector.loads[-1].copies
    assert (span.donor_start, span.target_start, span.length) == (50, 110, 420)
    placed = stored(engine, warm, 110, 530)
    assert torch.equal(placed[:, 1], kept[:, 1]), "V is copied"
    table = engine.worker.loads._loader._table
    at = torch.arange(420)
    rotated = table.rerotate(decoded(kept[:, 0]), at + 50, at + 110)
    expected = rotated.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).float()
    assert float((decoded(placed[:, 0]) == expected).float().mean()) > 0.999
    torch.testing.assert_close(decoded(placed[:, 0]), expected, rtol=2 * LAST_DIGIT, atol=1e-2)


def test_what_does_not_fit_is_clipped_and_counted(engine, model):
    engine.donate(DONOR)
    before = clipped(engine)
    warm = engine.run(TARGET)
    placed = stored(engine, warm, 110, 530)[:, 0]
    assert not torch.isnan(decoded(placed)).any()
    fits = model == "llama"  # at scale 1, fp8 has room to spare
    assert (clipped(engine) == before) == fits
    assert (decoded(placed).abs().max() == LARGEST) == (not fits)


def test_a_composition_is_the_float64_references_within_the_format(engine, model):
    if model != "llama":
        pytest.skip("the reference has no fp8 weights")
    donor = engine.donate(DONOR)
    lent = engine.kv(donor, 0, len(DONOR)).double()
    reference = plain_model("llama")
    theta = reference.config.rope_parameters["rope_theta"]
    exact = segmented_forward(reference, TARGET)
    cold = engine.kv(engine.cold(TARGET), 0, len(TARGET)).double()
    noise = _apart(cold, exact)
    warm = engine.run(TARGET)
    load = engine.scheduler_connector.loads[-1]
    borrowed = lent_to(load.copies, {span.donor_id: lent for span in load.copies}, theta)
    expected = segmented_forward(reference, TARGET, borrowed)
    got = engine.kv(warm, 0, len(TARGET)).double()
    assert _apart(got, expected) < 1.5 * noise, "as near as cold is to its own reference"
    assert _apart(got, exact) > 3 * noise, "reuse shows, so the comparison above could fail"


def _apart(got, reference):
    both = torch.stack((reference.keys, reference.values), dim=1)
    return float((got - both).norm() / both.norm())


def test_a_failed_load_answers_as_cold(engine):
    engine.donate(DONOR)
    cold = engine.cold(TARGET)
    with planted("copy"):
        warm = engine.run(TARGET)
    assert warm.semblend["outcome"] != "materialised"
    assert warm.tokens == cold.tokens


def test_a_policy_that_looks_reads_k_with_its_scale(engine):
    engine.donate(DONOR)
    hints = {"policy": "query_attention(0.2)", "capture": False}
    warm = engine.run(TARGET, hints=hints)
    assert warm.semblend["recomputed_tokens"] > 0
    blocks = engine.scheduler_connector.loads[-1].block_ids
    access = engine.worker.access
    bytes_of = decoded(access.read(blocks, 0, 64))
    for layer, module in enumerate(access.layers):
        numbers = access.read_layer(layer, blocks, 0, 64)
        torch.testing.assert_close(numbers[0], bytes_of[layer, 0] * module._k_scale_float)


def test_the_format_is_in_the_namespace_and_asked_of_certificates(engine):
    config = engine.scheduler_connector._config
    assert engine.scheduler.setup.namespace.cache_dtype == "fp8_e4m3"
    assert namespaces.kv_format(config) == "fp8_e4m3" != NONE
