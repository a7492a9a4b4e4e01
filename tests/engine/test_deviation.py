"""Measured deviation is zero where nothing is approximate, and only there."""

from __future__ import annotations

import numpy as np

from semblend.core.plan import Span
from tests.engine.donors import DonorShelf, cold_kv, hand_plan
from tests.engine.models import random_tokens, tiny
from tests.oracles.deviation import token_deviation

DONOR = random_tokens(60, 1)
TARGET = np.concatenate((random_tokens(11, 2), DONOR[8:50], random_tokens(5, 3)))
SPAN = Span(donor_id="d", donor_start=8, target_start=11, length=42)


def shelf() -> DonorShelf:
    result = DonorShelf()
    result.add("d", DONOR, cold_kv(tiny("llama-gqa")[0], DONOR), 16)
    return result


def test_layer_zero_does_not_deviate_and_deeper_ones_do() -> None:
    model, _ = tiny("llama-gqa")
    deviation = token_deviation(model, hand_plan(TARGET, [SPAN]), TARGET, shelf())
    curve = deviation[:, :, SPAN.target_start : SPAN.target_end].mean(dim=(1, 2))
    assert curve[0] < 1e-5  # its K/V depends on token and position alone
    assert curve[1] > 1e-3
    assert curve[2] > 1e-3


def test_tokens_before_the_first_span_are_exact_and_those_behind_are_not() -> None:
    model, _ = tiny("llama-gqa")
    deviation = token_deviation(model, hand_plan(TARGET, [SPAN]), TARGET, shelf())
    assert deviation.shape == (3, 2, len(TARGET))
    assert deviation[:, :, :11].max() < 1e-5
    assert deviation[2, :, -5:].min() > 1e-5


def test_a_prefix_in_its_place_does_not_deviate() -> None:
    model, _ = tiny("llama-gqa")
    target = np.concatenate((DONOR[:40], random_tokens(9, 4)))
    plan = hand_plan(target, [Span(donor_id="d", donor_start=0, target_start=0, length=40)])
    assert token_deviation(model, plan, target, shelf())[:, :, :40].max() < 1e-5
