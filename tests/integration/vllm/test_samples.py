"""Several samples of one prompt, and beams: K/V is not copied for each where once would do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from vllm import SamplingParams
from vllm.v1.request import Request

from semblend.integration.vllm.samples import sample_key, samples_of
from semblend.integration.vllm.support import request_refusal
from tests.integration.models import joined, random_tokens

DOCUMENT = random_tokens(420, seed=251)
DONOR = joined(random_tokens(50, seed=252), DOCUMENT, random_tokens(20, seed=253))
TARGET = joined(random_tokens(110, seed=254), DOCUMENT, random_tokens(33, seed=255))


@pytest.fixture
def engine(make_engine):
    engine = make_engine("llama")
    engine.forget_donors()
    engine.forget_prefixes()
    engine.donate(DONOR)
    engine.scheduler_connector.loads.clear()
    engine.scheduler_connector.steps.clear()
    return engine


def sampled(engine, n, **hints):
    """Seeded samples of the target; the steps they took are the connector's since the last call."""
    parameters = SamplingParams(
        n=n,
        temperature=0.8,
        seed=3,
        max_tokens=4,
        ignore_eos=True,
        detokenize=False,
        extra_args={"kv_transfer_params": {"semblend": hints}},
    )
    prompt = {"prompt_token_ids": TARGET.tolist()}
    (output,) = engine.llm.generate([prompt], parameters, use_tqdm=False)
    engine.drain()
    return output


def test_few_samples_are_loaded_each_for_itself(engine):
    output = sampled(engine, 2)
    assert output.kv_transfer_params["semblend"]["reused_tokens"] > 400
    loads = engine.scheduler_connector.loads
    assert [load.reused_tokens for load in loads] == [420, 420]
    # Planned in one step or, where the first plan took the step's ration, one after the other.
    assert loads[0].start == 0
    assert loads[1].start in (0, 96)
    blocks = engine.scheduler_connector.blocks
    first, second = (blocks[load.request_id] for load in loads)
    assert not set(first[loads[1].start // 32 :]) & set(second[loads[1].start // 32 :])
    # Once a load has ended its exact head is everybody's.
    sampled(engine, 2)
    assert [load.start for load in loads[2:]] == [96, 96]
    third, fourth = (blocks[load.request_id] for load in loads[2:])
    assert third[:3] == fourth[:3]
    assert third[:3] in (first[:3], second[:3])
    assert not set(third[3:]) & set(fourth[3:])


def test_many_samples_are_computed_once_and_share_the_prefix_cache(engine):
    output = sampled(engine, 8)
    assert engine.scheduler_connector.loads == []
    said = output.kv_transfer_params["semblend"]
    assert said["reused_tokens"] == 0
    first = next(step for step in engine.scheduler_connector.steps if step)
    assert sorted(first.values()) == [19] * 7 + [len(TARGET)]
    engine.forget_prefixes()
    cold = sampled(engine, 8, reuse=False, capture=False)
    assert [o.token_ids for o in output.outputs] == [o.token_ids for o in cold.outputs]
    assert engine.scheduler.planner.pipeline.ledger.totals().open_requests == 0


def test_samples_are_counted_by_parent_and_prompt():
    def request(name, tokens=(1, 2)):
        return SimpleNamespace(request_id=name, prompt_token_ids=list(tokens))

    live = [request("0_a"), request("1_a"), request("2_a", (1, 3)), request("0_b"), request("a")]
    keys = [sample_key(one) for one in live]
    assert [samples_of(key, keys) for key in keys] == [2, 2, 1, 1, 1]


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("beam_search-1f-beam-0-9ab3c1d2", "beam_search"),
        ("cmpl-7-beam-12", "beam_search"),
        ("cmpl-beam-searcher", None),
        ("my-beam-0-and-more", None),
    ],
)
def test_steps_of_the_servers_beams_are_computed(name, refusal):
    request = Request(
        request_id=name,
        prompt_token_ids=TARGET.tolist(),
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
    )
    assert request_refusal(request) == refusal
