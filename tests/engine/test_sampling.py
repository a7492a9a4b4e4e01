"""Tokens are drawn from the distribution that was asked for."""

from __future__ import annotations

import pytest
import torch

from semblend.engine.api import SamplingParams
from semblend.engine.sampling import choose, make_generator

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
