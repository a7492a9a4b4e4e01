"""Any engine's pool is filled, and read, as a loop over tokens in float64 says."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.errors import PlanError
from semblend.kv.layerwise import ALL_DIRECT, LayerwiseLoad
from semblend.kv.layout import PagedLayout
from semblend.kv.paged_kv import PagedKv
from semblend.kv.rotary_table import Pairing, RotaryTable
from semblend.kv.span_batch import SpanCopy, flat_batch
from semblend.kv.transfer import copy_spans
from tests.kv.layout_cases import LAYOUTS, LayoutCase, by_places, contents, layout_case

LIMITS = {torch.float32: 1e-5, torch.float16: 1.6e-2, torch.bfloat16: 1.3e-1}
"""Of numbers up to about 10: rounded once when K is turned and once when it is shifted."""
BITS = {2: torch.int16, 4: torch.int32}

cases = st.builds(layout_case, st.integers(0, 2**32 - 1))


class Written:
    """A pool only its engine can write to, as vLLM's on CPUs is."""

    def __init__(self, kv: PagedKv) -> None:
        self.kv = kv
        self.layer_count, self.slot_count = kv.layer_count, kv.slot_count
        self.head_shape, self.dtype, self.device = kv.head_shape, kv.dtype, kv.device
        self.writes = 0
        self.parts = kv.parts
        self.clipped = kv.clipped

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor | None, slots: torch.Tensor
    ) -> None:
        self.writes += 1
        blocks, offsets = slots // self.kv.block_size, slots % self.kv.block_size
        self.kv.keys[layer][blocks, offsets] = keys
        if values is not None:
            self.kv.values[layer][blocks, offsets] = values


@given(cases)
def test_spans_arrive_in_any_engines_pool_as_a_loop_over_tokens_says(case: LayoutCase) -> None:
    pool = case.make()
    assert copy_spans(pool, case.batch, case.table, drift=case.drift) == len(case.batch)
    difference = (contents(pool).double() - case.expected()).abs().max()
    assert float(difference) <= LIMITS[case.dtype]


@given(cases)
def test_slots_that_only_a_device_knows_are_looked_up(case: LayoutCase) -> None:
    pools = case.make(), case.make()
    copy_spans(pools[0], case.batch, case.table, drift=case.drift)
    batch, lookup = by_places(case.batch)
    copy_spans(pools[1], batch, case.table, drift=case.drift, lookup=lookup)
    got, want = map(contents, pools[::-1])
    assert torch.equal(got.view(BITS[case.dtype.itemsize]), want.view(BITS[case.dtype.itemsize]))


@pytest.mark.parametrize("lacking", ["source_slots", "target_slots"])
@pytest.mark.parametrize("place", [-1, 1 << 20])
def test_a_place_outside_the_list_is_refused(lacking: str, place: int) -> None:
    case = layout_case(4)
    batch, lookup = by_places(case.batch)
    places = getattr(batch, lacking).copy()
    places[0] = place
    with pytest.raises(PlanError, match="places"):
        copy_spans(case.make(), replace(batch, **{lacking: places}), case.table, lookup=lookup)


@pytest.mark.parametrize("spoiled", ["written twice", "read and written"])
def test_places_are_checked_where_slots_are_not_known(spoiled: str) -> None:
    """What is checked before a kernel runs; on the host nobody has seen a slot."""
    case = layout_case(4)
    batch, lookup = by_places(case.batch)
    read, written = batch.source_slots.copy(), batch.target_slots.copy()
    if spoiled == "written twice":
        written[0] = written[1]
    else:
        read[0] = written[1]
    batch = replace(batch, source_slots=read, target_slots=written, lookup=lookup.to("meta"))
    with pytest.raises(PlanError, match=spoiled):
        flat_batch(case.make(), batch, case.table)


@given(cases)
def test_what_does_not_move_keeps_its_bits_in_any_pool(case: LayoutCase) -> None:
    pool, bits = case.make(), BITS[case.dtype.itemsize]
    copy_spans(pool, case.batch, case.table, drift=case.drift)
    want = case.expected().to(case.dtype)  # exact where nothing was computed
    got, stays = contents(pool), torch.from_numpy(case.stays())
    assert torch.equal(got[:, :, stays].view(bits), want[:, :, stays].view(bits))
    others = np.setdiff1d(np.arange(pool.slot_count), case.batch.target_slots)
    before = contents(case.make())[:, :, others].view(bits)
    assert torch.equal(got[:, :, others].view(bits), before)


@given(cases)
def test_layers_in_turn_and_an_engines_own_writing_give_the_same_bits(case: LayoutCase) -> None:
    at_once, written = case.make(), case.make()
    copy_spans(at_once, case.batch, case.table, drift=case.drift)
    for direct_share in (0.0, 0.5, ALL_DIRECT):
        if isinstance(case.batch.sources[0], PagedKv):
            break
        in_turn = case.make()
        load = LayerwiseLoad(
            in_turn, case.batch, case.table, drift=case.drift, direct_share=direct_share
        )
        for layer in range(in_turn.layer_count):
            load(layer)
        assert torch.equal(contents(in_turn), contents(at_once))
    copy_spans(Written(written), case.batch, case.table, drift=case.drift)
    assert torch.equal(contents(written), contents(at_once))


def test_a_load_without_a_bus_writes_each_run_once_a_layer_however_its_slots_lie() -> None:
    layers, size, tokens = 12, 128, 512
    pool = LAYOUTS[0](torch.zeros, layers, 9, size, 2, 16)
    written = Written(pool)
    angles = torch.rand(600, 8)
    table = RotaryTable(cos=angles.cos(), sin=angles.sin(), pairing=Pairing.NEOX)
    source = torch.randn(layers, 2, tokens, 2, 16)
    slots = (np.array([7, 1, 5, 3])[:, None] * size + np.arange(size)).ravel()
    copy = SpanCopy(
        source=source,
        source_slots=np.arange(tokens),
        target_slots=slots,
        source_start=0,
        target_start=3,
    )
    with patch.object(RotaryTable, "differences", wraps=table.differences) as rows:
        LayerwiseLoad(written, [copy], table, direct_share=ALL_DIRECT).place_all()
    assert (rows.call_count, written.writes) == (1, layers)
    assert torch.equal(contents(pool)[:, 1, slots], source[:, 1])


def test_a_pool_may_be_its_own_source_unless_a_slot_is_read_and_written() -> None:
    for layout in LAYOUTS:
        pool = layout(torch.randn, 2, 8, 4, 2, 4)
        before = contents(pool)
        case = layout_case(0)
        table = case.table
        wide = replace(case.batch, sources=(pool,))
        apart = _run(wide, source=0, target=16, tokens=12)
        narrow = replace(table, cos=table.cos[:, :2], sin=table.sin[:, :2])
        copy_spans(pool, apart, narrow)
        want = narrow.rerotate(before[:, 0, :12], torch.arange(12), torch.arange(50, 62))
        torch.testing.assert_close(contents(pool)[:, 0, 16:28], want)
        with pytest.raises(PlanError, match="read and written"):
            copy_spans(pool, _run(wide, source=0, target=11, tokens=12), narrow)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_a_run_of_the_pool_itself_goes_to_scattered_slots(layout, layers) -> None:
    pool = layout(torch.randn, layers, 8, 4, 2, 16)
    before, scattered = contents(pool), np.array([31, 12, 20, 13, 27, 16])
    case = next(case for case in map(layout_case, range(0, 396, 4)) if case.table.rotary_dim == 16)
    run = _run(replace(case.batch, sources=(pool,)), source=3, target=0, tokens=6)
    for moved in (0, 50):
        positions = run.source_positions + moved
        copy_spans(
            pool, replace(run, target_slots=scattered, target_positions=positions), case.table
        )
        got, steps = contents(pool)[:, :, scattered], torch.arange(6)
        want = case.table.rerotate(before[:, 0, 3:9], steps, steps + moved)
        torch.testing.assert_close(got[:, 0], want)
        assert torch.equal(got[:, 1], before[:, 1, 3:9])


def _run(batch, *, source: int, target: int, tokens: int):
    offsets = np.arange(tokens)
    return replace(
        batch,
        source_numbers=np.zeros(tokens, dtype=np.int64),
        source_slots=source + offsets,
        target_slots=target + offsets,
        source_positions=offsets,
        target_positions=50 + offsets,
        span_offsets=offsets,
    )


def test_a_pool_in_another_pools_memory_is_no_source() -> None:
    pool = PagedLayout(layers=2, pages=4, page_size=4, kv_heads=1, head_dim=4).allocate(
        dtype=torch.float32, device="cpu"
    )
    case = layout_case(0)
    narrow = replace(case.table, cos=case.table.cos[:, :2], sin=case.table.sin[:, :2])
    for part in (pool[:, :, 1:], PagedKv.of_tensor(pool[:, :, 1:])):
        if isinstance(part, torch.Tensor):
            part = part.flatten(2, 3)
        batch = _run(replace(case.batch, sources=(part,)), source=0, target=12, tokens=3)
        with pytest.raises(PlanError, match="read and written"):
            copy_spans(PagedKv.of_tensor(pool), batch, narrow)


def test_layers_that_do_not_lie_alike_are_refused() -> None:
    whole, other = torch.zeros(4, 2, 1, 8), torch.zeros(4, 2, 1, 8).transpose(0, 1).contiguous()
    for keys, values in (
        ((), ()),
        ((whole, whole), (whole,)),
        ((), (whole,)),
        ((whole[0],), (whole[0],)),
        ((whole, other.transpose(0, 1)), (whole, whole)),
        ((whole,), (whole.double(),)),
        ((whole,), (whole[:3],)),
    ):
        with pytest.raises(PlanError, match="paged K/V"):
            PagedKv(keys=keys, values=values)


def test_segments_and_a_pool_are_not_copied_from_at_once() -> None:
    case = next(case for case in map(layout_case, range(99)) if len(case.batch.sources) == 3)
    pool = case.make()
    mixed = replace(case.batch, sources=(*case.batch.sources[:2], case.make()))
    with pytest.raises(PlanError, match="cannot be combined"):
        copy_spans(pool, mixed, case.table)
