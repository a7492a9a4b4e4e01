"""Laws of moving K, and the ways to come by rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.errors import PlanError, UnsupportedRotaryError
from semblend.kv.layer_rotary import LayerRotary
from semblend.kv.rotary_spec import Pairing, RotarySpec
from semblend.kv.rotary_table import RotaryTable
from tests.oracles.rotary_float64 import place

ROWS = 600


@st.composite
def specs(draw: st.DrawFn) -> RotarySpec:
    rotary_dim = 2 * draw(st.integers(1, 8))
    kind = draw(st.sampled_from(["default", "linear", "llama3", "yarn"]))
    scaled: dict[str, object] = {}
    if kind != "default":
        scaled = {"factor": draw(st.sampled_from([1.5, 4.0, 32.0]))}
    if kind == "llama3":
        scaled |= {
            "original_max_positions": 64,
            "low_freq_factor": 1.0,
            "high_freq_factor": draw(st.sampled_from([2.0, 4.0])),
        }
    if kind == "yarn":
        scaled |= {
            "original_max_positions": 64,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "attention_factor": draw(st.sampled_from([1.0, 1.4, 0.6])),
            "truncate": draw(st.booleans()),
        }
    return RotarySpec(
        kind=kind,
        pairing=draw(st.sampled_from(list(Pairing))),
        head_dim=rotary_dim + draw(st.integers(0, 5)),
        rotary_dim=rotary_dim,
        theta=draw(st.sampled_from([100.0, 1e4, 1e6])),
        max_positions=ROWS,
        **scaled,
    )


@st.composite
def moves(draw: st.DrawFn):
    spec = draw(specs())
    tokens = draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    keys = torch.randn(2, tokens, 3, spec.head_dim, generator=generator)
    source = torch.randint(0, ROWS, (tokens,), generator=generator)
    target = torch.randint(0, ROWS, (tokens,), generator=generator)
    return spec, keys, source, target


@given(moves())
def test_there_and_back_is_where_it_was(case) -> None:
    spec, keys, source, target = case
    table = RotaryTable.from_spec(spec)
    there = table.rerotate(keys, source, target)
    back = table.rerotate(there, target, source)
    torch.testing.assert_close(back, keys, rtol=1e-5, atol=1e-5)


@given(moves())
def test_two_moves_are_one(case) -> None:
    spec, keys, source, target = case
    table = RotaryTable.from_spec(spec)
    middle = (source + target) // 2
    twice = table.rerotate(table.rerotate(keys, source, middle), middle, target)
    torch.testing.assert_close(twice, table.rerotate(keys, source, target), rtol=1e-4, atol=1e-5)


@given(moves())
def test_a_moved_key_is_the_key_computed_there(case) -> None:
    spec, keys, source, target = case
    frequencies = spec.inverse_frequencies().double().tolist()
    turning = {"frequencies": frequencies, "interleaved": spec.pairing is Pairing.INTERLEAVED}
    here = place(keys[0], source.tolist(), **turning)
    there = place(keys[0], target.tolist(), **turning)
    moved = RotaryTable.from_spec(spec).rerotate(here.float(), source, target)
    # fp32 angles err by position * 2**-24 radians.
    torch.testing.assert_close(moved.double(), there, rtol=1e-4, atol=4e-4)


@given(moves(), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_keys_that_stay_keep_their_bits_and_the_rest_of_a_head_always_does(case, dtype) -> None:
    spec, keys, source, target = case
    keys = keys.to(dtype)
    keys[0, 0, 0, 0] = -0.0
    keys[0, 0, 1, 0] = torch.inf
    target = torch.where(torch.arange(len(target)) % 2 == 0, source, target)
    moved = RotaryTable.from_spec(spec).rerotate(keys, source, target)
    stays = source == target
    bits = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    assert torch.equal(moved[:, stays].view(bits), keys[:, stays].view(bits))
    rest = slice(spec.rotary_dim, None)
    assert torch.equal(moved[..., rest].contiguous(), keys[..., rest].contiguous())


@given(moves())
def test_moving_never_changes_a_keys_length(case) -> None:
    spec, keys, source, target = case
    moved = RotaryTable.from_spec(spec).rerotate(keys, source, target)
    torch.testing.assert_close(moved.norm(dim=-1), keys.norm(dim=-1), rtol=1e-5, atol=1e-5)


@given(moves())
def test_the_argument_is_left_alone_and_order_of_tokens_does_not_matter(case) -> None:
    spec, keys, source, target = case
    before = keys.clone()
    table = RotaryTable.from_spec(spec)
    moved = table.rerotate(keys, source, target)
    assert torch.equal(keys, before)
    back = torch.arange(len(source)).flip(0)
    assert torch.equal(table.rerotate(keys[:, back], source[back], target[back]), moved[:, back])


def test_rows_of_an_engines_cache_and_of_a_spec_are_the_same() -> None:
    spec = RotarySpec(head_dim=16, rotary_dim=8, theta=1e4, max_positions=64)
    table = RotaryTable.from_spec(spec)
    cached = RotaryTable.from_cos_sin_cache(torch.cat((table.cos, table.sin), dim=-1))
    assert torch.equal(cached.cos, table.cos)
    assert torch.equal(cached.sin, table.sin)
    assert cached.rotary_dim == 8


def test_positions_without_a_row_are_refused() -> None:
    table = RotaryTable.from_spec(RotarySpec(head_dim=8, rotary_dim=8, theta=1e4, max_positions=16))
    keys = torch.randn(2, 1, 8)
    for source, target in (([0, 16], [0, 1]), ([0, 1], [0, -1])):
        with pytest.raises(PlanError, match=r"rows \[0, 16\)"):
            table.rerotate(keys, torch.tensor(source), torch.tensor(target))
    with pytest.raises(PlanError, match="2 tokens"):
        table.rerotate(keys, torch.tensor([0]), torch.tensor([1]))
    with pytest.raises(UnsupportedRotaryError, match="heads have 6"):
        table.rerotate(torch.randn(1, 1, 6), torch.tensor([0]), torch.tensor([1]))
    assert table.rerotate(keys[:0], torch.tensor([]), torch.tensor([])).shape == (0, 1, 8)


def test_rows_of_a_wrong_shape_are_refused() -> None:
    with pytest.raises(UnsupportedRotaryError, match="two equal shapes"):
        RotaryTable(cos=torch.ones(4, 2), sin=torch.ones(4, 3))
    with pytest.raises(UnsupportedRotaryError, match="cos_sin_cache"):
        RotaryTable.from_cos_sin_cache(torch.ones(4, 3))


def test_a_module_whose_rows_are_not_doubled_is_refused() -> None:
    class Odd(torch.nn.Module):
        def forward(self, x, position_ids):
            rows = torch.arange(8.0) * position_ids[0, :, None]
            return rows.cos()[None], rows.sin()[None]

    with pytest.raises(UnsupportedRotaryError, match="doubled neither"):
        RotaryTable.from_model_rotary(Odd(), 4)


def test_rows_of_the_last_numbers_leave_the_others_alone() -> None:
    spec = RotarySpec(head_dim=8, rotary_dim=8, theta=1e4, max_positions=64)
    whole = RotaryTable.from_spec(spec)
    keys = torch.randn(3, 5, 1, 20)
    at, to = torch.arange(5), torch.arange(5) + 40
    moved = replace(whole, offset=12).rerotate(keys, at, to)
    assert torch.equal(moved[..., :12], keys[..., :12])
    torch.testing.assert_close(moved[..., 12:], whole.rerotate(keys[..., 12:], at, to))


def test_rows_that_leave_numbers_on_both_sides_are_refused() -> None:
    spec = RotarySpec(head_dim=8, rotary_dim=8, theta=1e4, max_positions=64)
    table = replace(RotaryTable.from_spec(spec), offset=4)
    for width in (8, 20):
        with pytest.raises(UnsupportedRotaryError, match=rf"\[4, 12\) rotate, heads have {width}"):
            table.rerotate(torch.zeros(1, 1, width), torch.tensor([0]), torch.tensor([1]))


def test_each_layer_moves_by_its_own_rows() -> None:
    spec = RotarySpec(head_dim=8, rotary_dim=8, theta=1e4, max_positions=64)
    tables = tuple(RotaryTable.from_spec(replace(spec, theta=theta)) for theta in (1e4, 1e2))
    layers = LayerRotary(tables=tables, of_layer=(0, 0, 1, 0))
    keys = torch.randn(4, 5, 2, 8)
    at, to = torch.arange(5), torch.arange(5) + 40
    moved = layers.rerotate(keys, at, to)
    for layer, kind in enumerate(layers.of_layer):
        assert torch.equal(moved[layer], tables[kind].rerotate(keys[layer], at, to))
    assert [run for run, _ in layers.runs(range(1, 4))] == [range(1, 2), range(2, 3), range(3, 4)]
