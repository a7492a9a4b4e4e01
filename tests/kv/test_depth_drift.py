"""Depth drift: a table of means, and what a run of tokens is given when it moves."""

from __future__ import annotations

import pytest
import torch

from semblend.core.errors import SerialisationError
from semblend.kv.depth_drift import DepthDrift, read_table, table_digest
from semblend.kv.rotary_spec import Pairing
from semblend.kv.rotary_table import RotaryTable

LAYERS, HEADS, DIM = 3, 2, 8


def rotary(width=DIM, pairing=Pairing.NEOX):
    angles = torch.arange(4096)[:, None] * 0.01 ** (torch.arange(width // 2) / (width // 2))
    return RotaryTable(cos=angles.cos() * 1.5, sin=angles.sin() * 1.5, pairing=pairing)


def drift():
    generator = torch.Generator().manual_seed(7)
    depths = torch.tensor([8.0, 100.0, 1000.0, 3000.0])
    means = torch.randn((LAYERS, 2, 4, HEADS, DIM), generator=generator)
    return DepthDrift(depths=depths, means=means)


def test_means_are_the_tables_own_at_its_depths_straight_between_and_flat_beyond():
    table = drift()
    assert torch.equal(table.at(table.depths), table.means)
    middle = table.at(torch.tensor([54.0]))
    torch.testing.assert_close(middle, table.means[:, :, :2].mean(2, keepdim=True))
    ends = table.at(torch.tensor([0.0, 9e5]))
    assert torch.equal(ends, table.means[:, :, [0, -1]])


@pytest.mark.parametrize("pairing", list(Pairing))
@pytest.mark.parametrize("width", [DIM, DIM // 2])
def test_what_is_only_depth_is_moved_exactly(pairing, width):
    """K and V that are nothing but their depth's mean arrive as the other depth's mean."""
    table, rows = drift(), rotary(width, pairing)
    flat = DepthDrift(
        depths=torch.tensor([0.0, 500.0, 501.0, 4000.0]),
        means=table.means[:, :, [0, 0, 1, 1]],
    )
    tokens, source, target = 40, 100, 2000
    at_source, at_target = (torch.arange(start, start + tokens) for start in (source, target))
    zeros = torch.zeros(tokens, dtype=torch.int64)
    move = flat.move(source_start=source, target_start=target, tokens=tokens, rotary=rows)
    for layer in range(LAYERS):
        old, new = (flat.means[layer, :, at, None].expand(2, tokens, HEADS, DIM) for at in (0, 2))
        borrowed = rows.rerotate(rows.rerotate(old[0], zeros, at_source), at_source, at_target)
        cold = rows.rerotate(new[0], zeros, at_target)
        torch.testing.assert_close(move.keys(layer, borrowed), cold, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(move.values(layer, old[1]), new[1], rtol=1e-4, atol=1e-5)


def test_there_and_back_changes_nothing():
    table, rows = drift(), rotary()
    there = table.move(source_start=50, target_start=2050, tokens=33, rotary=rows)
    back = table.move(source_start=2050, target_start=50, tokens=33, rotary=rows)
    values = torch.randn(33, HEADS, DIM)
    torch.testing.assert_close(
        back.values(1, there.values(1, values)), values, rtol=1e-4, atol=1e-5
    )


def test_number_formats_are_kept_and_what_hardly_moves_is_left_alone():
    table, rows = drift(), rotary()
    assert table.move(source_start=300, target_start=44, tokens=9, rotary=rows) is None
    assert table.move(source_start=0, target_start=900, tokens=0, rotary=rows) is None
    move = table.move(source_start=301, target_start=44, tokens=9, rotary=rows)
    keys = torch.randn(9, HEADS, DIM, dtype=torch.bfloat16)
    assert move.keys(0, keys).dtype == move.values(0, keys).dtype == torch.bfloat16


def test_a_table_survives_its_file_and_others_are_refused(tmp_path):
    table, path = drift(), tmp_path / "depth.safetensors"
    path.write_bytes(table.to_bytes())
    again = read_table(path)
    assert torch.equal(again.means, table.means)
    assert torch.equal(again.depths, table.depths)
    assert table_digest(again.to_bytes()) == table_digest(path.read_bytes())
    with pytest.raises(SerialisationError, match="cannot be read"):
        read_table(tmp_path / "none")
    for broken in (b"", b"rubbish" * 9, path.read_bytes()[:-5]):
        with pytest.raises(SerialisationError, match="not a depth-drift table"):
            DepthDrift.from_bytes(broken)
    for depths, means in (
        (table.depths.flip(0), table.means),
        (table.depths[:3], table.means),
        (table.depths, table.means * float("nan")),
        (table.depths[:1], table.means[:, :, :1]),
    ):
        with pytest.raises(SerialisationError, match="ascending depths"):
            DepthDrift(depths=depths, means=means)
