"""The master promise: all tokens as holes is an ordinary prefill, however they are cut."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend.core.tokens import TokenArray
from semblend.engine.batch import ComputeRun
from semblend.engine.cache.pages import PageTable
from semblend.engine.segmented import compute
from tests.engine.donors import make_pool, make_table
from tests.engine.models import (
    ARCHITECTURES,
    plain_kv,
    plain_logits,
    random_tokens,
    reference,
    tiny,
)

CUTS = {
    "one hole": [],
    "many holes": [7, 20, 33, 34, 60, 77],
    "one-token holes": list(range(1, 90)),
    "one-token tail": [89],
    "page-sized holes": list(range(8, 90, 8)),
}


def holes(tokens: TokenArray, cuts: list[int], table: PageTable) -> list[ComputeRun]:
    edges = [0, *cuts, len(tokens)]
    return [
        ComputeRun(tokens=tokens[a:b], start=a, table=table, logit_rows=int(b == len(tokens)))
        for a, b in itertools.pairwise(edges)
    ]


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_all_tokens_as_holes_is_a_plain_prefill(architecture: str, cuts: list[int]) -> None:
    model, plain = tiny(architecture)
    pool, tokens = make_pool(model), random_tokens(90, 1)
    table = make_table(pool, 90)
    logits = compute(model, pool, holes(tokens, cuts, table))
    assert (logits[0] - plain_logits(plain, tokens)).abs().max() <= 1e-4
    assert (pool.read(table, 0, 90) - plain_kv(plain, tokens)).abs().max() <= 1e-4


@given(
    data=st.data(),
    length=st.integers(2, 120),
    architecture=st.sampled_from(sorted(ARCHITECTURES)),
    scatter=st.none() | st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_no_way_of_cutting_or_paging_changes_the_logits(
    data: st.DataObject, length: int, architecture: str, scatter: int | None
) -> None:
    model, plain = tiny(architecture)
    cuts = sorted(data.draw(st.sets(st.integers(1, length - 1), max_size=12)))
    page_size = data.draw(st.sampled_from([1, 3, 8, 16]))
    pool, tokens = make_pool(model, 256, page_size), random_tokens(length, length)
    logits = compute(model, pool, holes(tokens, cuts, make_table(pool, length, scatter)))
    assert (logits[0] - plain_logits(plain, tokens)).abs().max() <= 1e-4


@pytest.mark.parametrize("cuts", [[], [1, 2, 3, 200, 201, 500], list(range(32, 700, 32))])
def test_the_reference_model_as_holes_is_a_plain_prefill(cuts: list[int]) -> None:
    model, plain = reference()
    pool, tokens = make_pool(model, 1024, 16), random_tokens(700, 3, 16_000)
    logits = compute(model, pool, holes(tokens, cuts, make_table(pool, 700)))
    assert (logits[0] - plain_logits(plain, tokens)).abs().max() <= 1e-4


def test_holes_in_several_passes_are_holes_in_one() -> None:
    model, plain = tiny("qwen3")
    pool, tokens = make_pool(model), random_tokens(64, 5)
    table = make_table(pool, 64)
    for run in holes(tokens, [10, 11, 40], table):
        logits = compute(model, pool, [run])
    assert (logits[0] - plain_logits(plain, tokens)).abs().max() <= 1e-4


def test_requests_in_one_pass_do_not_see_each_other() -> None:
    model, plain = tiny("llama-gqa")
    pool = make_pool(model)
    prompts = [random_tokens(n, n) for n in (1, 2, 17, 64, 33)]
    runs = [run for p in prompts for run in holes(p, [], make_table(pool, len(p)))]
    logits = compute(model, pool, runs)
    for row, prompt in zip(logits, prompts, strict=True):
        assert (row - plain_logits(plain, prompt)).abs().max() <= 1e-4


def test_the_layer_hook_sees_each_layer_once_with_its_keys_in_place() -> None:
    model, _plain = tiny("llama-gqa")
    pool, tokens = make_pool(model), random_tokens(20, 2)
    table = make_table(pool, 20)
    seen: list[int] = []

    def hook(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        seen.append(layer)
        assert query.shape == (20, 6, 8)
        assert torch.equal(pool.read(table, 0, 20)[layer, 0], key)
        assert torch.equal(pool.read(table, 0, 20)[layer, 1], value)

    compute(model, pool, holes(tokens, [], table), hook=hook)
    assert seen == [0, 1, 2]
