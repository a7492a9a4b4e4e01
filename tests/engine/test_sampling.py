"""Tokens are drawn from the distribution that was asked for."""

from __future__ import annotations

import pytest
import torch

from semblend.engine.api import SamplingParams
from semblend.engine.output.sampling import choose, make_generator

LOGITS = torch.tensor([0.0, 2.0, 1.0, -1.0, 1.5])


def draws(params: SamplingParams, count: int = 4000) -> torch.Tensor:
    generator = make_generator(params)
    ids = [choose(LOGITS, params, generator).token_id for _ in range(count)]
    return torch.bincount(torch.tensor(ids), minlength=5) / count


def test_the_default_is_greedy() -> None:
    params = SamplingParams()
    assert make_generator(params) is None
    assert choose(LOGITS, params, None).token_id == 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_scales_the_logits(temperature: float) -> None:
    expected = torch.softmax(LOGITS / temperature, dim=-1)
    assert torch.allclose(
        draws(SamplingParams(temperature=temperature, seed=1)), expected, atol=0.03
    )


def test_top_k_keeps_the_k_likeliest() -> None:
    seen = draws(SamplingParams(temperature=1.0, top_k=2, seed=1))
    expected = torch.softmax(LOGITS[[1, 4]], dim=-1)
    assert torch.allclose(seen[[1, 4]], expected, atol=0.03)
    assert seen[[0, 2, 3]].sum() == 0


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    probabilities = torch.softmax(LOGITS, dim=-1)
    p = float(probabilities[1] + probabilities[4]) - 1e-3  # the second just reaches it
    seen = draws(SamplingParams(temperature=1.0, top_p=p, seed=1))
    assert (seen > 0).tolist() == [False, True, False, False, True]
    tiny = draws(SamplingParams(temperature=1.0, top_p=1e-6, seed=1), 50)
    assert tiny[1] == 1.0


@pytest.mark.parametrize(
    "cuts",
    [
        {"temperature": 5e-324},
        {"temperature": 1e-39, "top_k": 3},
        {"temperature": 1e-30, "top_p": 0.5},
        {"temperature": 1.0, "top_p": 5e-324},
        {"temperature": 5e-324, "top_p": 5e-324},
    ],
)
def test_the_smallest_temperature_and_top_p_take_the_likeliest_token(
    cuts: dict[str, float],
) -> None:
    assert draws(SamplingParams(seed=1, **cuts), 20)[1] == 1.0  # type: ignore[arg-type]


def test_logprobs_are_the_models_own() -> None:
    params = SamplingParams(temperature=1.0, top_k=1, top_logprobs=3)
    choice = choose(LOGITS, params, make_generator(params))
    expected = torch.log_softmax(LOGITS, dim=-1)
    assert choice.logprob == pytest.approx(float(expected[choice.token_id]))
    assert [top.token_id for top in choice.top] == [1, 4, 2]
    assert choice.top[0].logprob == pytest.approx(float(expected[1]))


def test_penalties_are_counted_over_the_answer_alone() -> None:
    params = SamplingParams(presence_penalty=0.3, frequency_penalty=0.2)
    # Token 1 (2.0) twice: 2.0 - 0.3 - 0.4 = 1.3, below token 4 (1.5).
    assert choose(LOGITS, params, None, output=[1, 1]).token_id == 4
    assert choose(LOGITS, params, None, output=[1]).token_id == 1  # 1.5 and first
    assert choose(LOGITS, params, None, prompt=[1, 1, 1], output=[]).token_id == 1


def test_the_repetition_penalty_looks_at_prompt_and_answer_and_lowers_every_sign() -> None:
    params = SamplingParams(repetition_penalty=2.0)
    assert choose(LOGITS, params, None, prompt=[1]).token_id == 4  # 2.0 / 2 < 1.5
    assert choose(LOGITS, params, None, prompt=[1], output=[4]).token_id in (1, 2)
    negative = torch.tensor([-1.0, -1.5])
    assert choose(negative, params, None, prompt=[0]).token_id == 1  # -1.0 * 2 < -1.5


def test_penalties_leave_the_logits_and_the_reported_probabilities_alone() -> None:
    before = LOGITS.clone()
    params = SamplingParams(presence_penalty=2.0, logit_bias=((3, 50.0),), top_logprobs=1)
    choice = choose(LOGITS, params, None, output=[1])
    assert choice.token_id == 3
    assert torch.equal(LOGITS, before)
    assert choice.logprob == pytest.approx(float(torch.log_softmax(LOGITS, -1)[3]))


def test_min_p_drops_what_is_less_likely_than_its_share_of_the_best() -> None:
    # Against token 1: token 4 has exp(-0.5) = 0.61, token 2 exp(-1) = 0.37.
    seen = draws(SamplingParams(temperature=1.0, min_p=0.5, seed=1))
    assert (seen > 0).tolist() == [False, True, False, False, True]
