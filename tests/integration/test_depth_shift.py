"""Adapters shift what they copy as the embedded engine does; here without an engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoConfig

from semblend.core.errors import SerialisationError
from semblend.core.settings import Settings
from semblend.integration.loaded_model.model_certificates import uncertified_standing
from semblend.integration.worker.pool_copies import PoolCopies
from semblend.kv.depth_drift import DepthDrift
from semblend.kv.paged_kv import PagedKv
from semblend.kv.rotary_table import RotaryTable
from semblend.kv.span_batch import SpanCopy
from tests.integration.models import REFERENCE

LAYERS, HEADS, DIM = 3, 4, 8


def drift():
    generator = torch.Generator().manual_seed(9)
    means = torch.randn((LAYERS, 2, 3, HEADS, DIM), generator=generator)
    return DepthDrift(depths=torch.tensor([10.0, 300.0, 900.0]), means=means)


def rotary():
    angles = torch.arange(2048)[:, None] * 0.01 ** (torch.arange(DIM // 2) / (DIM // 2))
    return RotaryTable(cos=angles.cos(), sin=angles.sin())


def test_copies_in_a_pool_shift_what_moved_and_leaves_the_donor_alone():
    keys, values = ([torch.randn(200, HEADS, DIM) for _ in range(LAYERS)] for _ in range(2))
    donor = [(k[:50].clone(), v[:50].clone()) for k, v in zip(keys, values, strict=True)]
    pool, rows = PoolCopies(PagedKv.of_slots(keys, values), rotary()), np.arange(50)
    copy = SpanCopy(
        source=pool.pool,
        source_slots=rows,
        target_slots=rows + 100,
        source_start=20,
        target_start=700,
    )
    assert pool.copy([copy]) == 50
    plain = [(k[100:150].clone(), v[100:150].clone()) for k, v in zip(keys, values, strict=True)]
    assert pool.copy([copy], drift()) == 50
    move = drift().move(source_start=20, target_start=700, tokens=50, rotary=rotary())
    for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
        torch.testing.assert_close(k[100:150], move.keys(layer, plain[layer][0]))
        torch.testing.assert_close(v[100:150], move.values(layer, plain[layer][1]))
        assert (k[100:150] - plain[layer][0]).abs().max() > 0.1
        assert torch.equal(k[:50], donor[layer][0])
        assert torch.equal(v[:50], donor[layer][1])


def test_experiments_go_by_the_models_table_where_their_policy_does():
    config = AutoConfig.from_pretrained(REFERENCE)
    model = (str(REFERENCE), config)
    shifting = Settings(recompute_policy="depth_shift(none)")
    found = uncertified_standing(*model, dtype="float32", settings=shifting)
    assert found.certificate is None
    assert found.depth_table is not None
    assert found.depth_table.name.endswith("-float32.depth.safetensors")
    for dtype, settings in (
        ("float16", shifting),
        ("float32", Settings(recompute_policy="none")),
        ("float32", Settings(recompute_policy="nonsense(")),
    ):
        assert uncertified_standing(*model, dtype=dtype, settings=settings).depth_table is None


def test_a_damaged_table_is_not_used_without_a_certificate_that_vouches_for_it(tmp_path):
    config = AutoConfig.from_pretrained(REFERENCE)
    settings = Settings(recompute_policy="depth_shift(none)", certificate_dir=str(tmp_path))
    about = {"dtype": "float32", "settings": settings}
    shipped = uncertified_standing(str(REFERENCE), config, **about).depth_table
    assert shipped is not None
    assert shipped.parent != tmp_path
    damaged = tmp_path / shipped.name
    damaged.write_bytes(shipped.read_bytes()[:-9])
    assert uncertified_standing(str(REFERENCE), config, **about).depth_table is None
    damaged.write_bytes(shipped.read_bytes())
    assert uncertified_standing(str(REFERENCE), config, **about).depth_table == damaged


def test_ranks_share_a_tables_heads_as_engines_share_the_models():
    table = drift()
    halves = [table.of_rank(layers=LAYERS, kv_heads=2, rank=r, ranks=2) for r in range(2)]
    assert torch.equal(torch.cat([half.means for half in halves], dim=3), table.means)
    alone = table.of_rank(layers=LAYERS, kv_heads=HEADS, rank=0, ranks=1)
    assert torch.equal(alone.means, table.means)
    # Eight ranks for four heads: each head is held twice, by neighbours.
    eighths = [table.of_rank(layers=LAYERS, kv_heads=1, rank=r, ranks=8) for r in range(8)]
    held = torch.cat([part.means for part in eighths], dim=3)
    assert torch.equal(held, table.means.repeat_interleave(2, dim=3))


def test_a_table_of_another_model_is_refused():
    for asked in (
        {"layers": LAYERS + 1, "kv_heads": HEADS, "rank": 0, "ranks": 1},
        {"layers": LAYERS, "kv_heads": HEADS + 1, "rank": 0, "ranks": 1},
    ):
        with pytest.raises(SerialisationError, match="layers and"):
            drift().of_rank(**asked)
