"""K turned for an engine stands as if it had been computed at its new place."""

from __future__ import annotations

import pytest
import torch

from semblend.core.errors import PlanError
from semblend.integration.key_turns import KeyTurn
from semblend.kv.rotary_spec import Pairing
from semblend.kv.rotary_table import RotaryTable
from tests.oracles.rotary_float64 import place

TOKENS, HEADS, WIDTH, ROWS = 5, 2, 16, 200


def table_and_keys(pairing: Pairing, rotary_dim: int):
    """Rows as an engine caches them, and K [tokens, heads, width] before any rotation."""
    frequencies = [10_000.0 ** (-pair / (rotary_dim // 2)) for pair in range(rotary_dim // 2)]
    angles = torch.arange(ROWS, dtype=torch.float64)[:, None] * torch.tensor(frequencies)
    cache = torch.cat((angles.cos(), angles.sin()), dim=1).float()
    table = RotaryTable.from_cos_sin_cache(cache, pairing=pairing)
    keys = torch.randn(TOKENS, HEADS, WIDTH, generator=torch.Generator().manual_seed(1))

    def at(start: int) -> torch.Tensor:
        interleaved = pairing is Pairing.INTERLEAVED
        return place(keys, [*range(start, start + TOKENS)], frequencies, interleaved=interleaved)

    return table, at


@pytest.mark.parametrize("pairing", list(Pairing))
@pytest.mark.parametrize("rotary_dim", [WIDTH, WIDTH // 2], ids=["whole", "partial"])
@pytest.mark.parametrize(("donor_start", "target_start"), [(3, 150), (150, 3), (40, 41)])
def test_moved_k_is_k_computed_there(pairing, rotary_dim, donor_start, target_start):
    table, at = table_and_keys(pairing, rotary_dim)
    turn = KeyTurn(table, donor_start=donor_start, target_start=target_start, tokens=TOKENS)
    moved = turn(at(donor_start).float())
    torch.testing.assert_close(moved.double(), at(target_start), atol=1e-5, rtol=1e-5)


def test_k_that_does_not_move_is_handed_through_bit_for_bit():
    table, at = table_and_keys(Pairing.NEOX, WIDTH)
    keys = at(7).bfloat16()
    same = KeyTurn(table, donor_start=7, target_start=7, tokens=TOKENS)(keys)
    assert same.dtype is torch.bfloat16
    assert torch.equal(same, keys)


def test_positions_without_a_row_are_refused():
    table, _ = table_and_keys(Pairing.NEOX, WIDTH)
    with pytest.raises(PlanError, match="position"):
        KeyTurn(table, donor_start=0, target_start=ROWS - TOKENS + 1, tokens=TOKENS)
