"""What only a GPU can show: the compiled kernel, pinned memory, copies between devices."""

from __future__ import annotations

import pytest
import torch

from semblend.kv.in_flight import InFlight
from semblend.kv.layerwise import ALL_DIRECT, LayerwiseLoad
from semblend.kv.layout import by_slot
from semblend.kv.paged_kv import PagedKv
from semblend.kv.pinned_arena import PinnedArena
from semblend.kv.rotary_self_test import self_test
from semblend.kv.rotary_spec import Pairing, RotarySpec
from semblend.kv.rotary_table import RotaryTable
from semblend.kv.span_batch import SpanCopy
from semblend.kv.tiers import DiskTier, MemoryTier, TierStack
from semblend.kv.transfer import copy_spans
from tests.kv.layout_cases import contents, layout_case
from tests.kv.models import FAMILIES, rotary_module
from tests.kv.segments import FILE_BYTES, SEGMENT_BYTES, key_of, segment_of
from tests.kv.span_cases import LIMITS, SpanCase, make_case

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="no NVIDIA GPU: K/V on a device is NOT tested here"
    ),
]


def case_of(dtype: torch.dtype, pairing: Pairing) -> SpanCase:
    return make_case(
        seed=7,
        dtype=dtype,
        pairing=pairing,
        head_dim=20,
        rotary_dim=12,
        kv_heads=3,
        layers=5,
        page_size=4,
        lengths=[9, 1, 17, 5, 24],
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pairing", list(Pairing))
@pytest.mark.parametrize("donors_on", ["cuda", "host", "pinned host"])
def test_spans_arrive_on_the_gpu_as_on_the_cpu(dtype, pairing, donors_on) -> None:
    case = case_of(dtype, pairing)
    want = case.pool.clone()
    copy_spans(want, case.copies, case.table)
    place = {
        "cuda": lambda kv: kv.cuda(),
        "host": lambda kv: kv,
        "pinned host": lambda kv: kv.pin_memory(),
    }[donors_on]
    copies = [
        SpanCopy(
            source=place(copy.source),
            source_slots=copy.source_slots,
            target_slots=copy.target_slots,
            source_start=copy.source_start,
            target_start=copy.target_start,
        )
        for copy in case.copies
    ]
    pool = case.pool.cuda()
    copy_spans(pool, copies, case.table)
    torch.testing.assert_close(pool.cpu(), want, rtol=0, atol=LIMITS[dtype])
    assert torch.equal(by_slot(pool)[:, 1].cpu(), by_slot(want)[:, 1])


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("way", ["at once", "staged", "direct", "unpinned"])
def test_any_engines_pool_is_filled_on_the_gpu_as_on_the_cpu(seed, way) -> None:
    want = layout_case(seed)
    pool = want.make()
    copy_spans(pool, want.batch, want.table, drift=want.drift)
    place = None if way == "at once" else lambda kv: kv.cpu() if way == "unpinned" else pinned(kv)
    case = layout_case(seed, "cuda", place)
    got = case.make()
    if way == "at once" or isinstance(case.batch.sources[0], PagedKv):
        copy_spans(got, case.batch, case.table, drift=case.drift)
    else:
        load = LayerwiseLoad(
            got,
            case.batch,
            case.table,
            drift=case.drift,
            stream=torch.cuda.Stream(),
            direct_share=0.0 if way == "staged" else ALL_DIRECT,
        )
        for layer in range(got.layer_count):
            load(layer)
    limit = 4 * LIMITS[case.dtype]
    torch.testing.assert_close(contents(got).cpu(), contents(pool), rtol=0, atol=limit)
    stays = torch.from_numpy(case.stays())
    assert torch.equal(contents(got).cpu()[:, :, stays], contents(pool)[:, :, stays])


def pinned(kv: torch.Tensor) -> torch.Tensor:
    return kv.cpu().pin_memory()


def test_an_arenas_memory_is_pinned_and_copied_both_ways() -> None:
    arena = PinnedArena(64 << 20, segment_bytes=1 << 20)
    held = arena.empty((1 << 18,), torch.float32)
    assert held.is_pinned()
    numbers = torch.randn(1 << 18, device="cuda")
    held.copy_(numbers, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(held, numbers.cpu())
    back = held.to("cuda", non_blocking=True)
    assert torch.equal(back, numbers)
    torch.cuda.synchronize()
    del held
    arena.close()


def test_what_a_device_still_reads_is_kept_until_it_has() -> None:
    kept = InFlight()
    event, done = torch.cuda.Event(), []
    torch.cuda._sleep(200_000_000)
    event.record()
    kept.hold(event, object(), then=lambda: done.append(1))
    kept.sweep()
    assert len(kept) == 1
    assert not done
    torch.cuda.synchronize()
    kept.sweep()
    assert done
    assert len(kept) == 0


def test_segments_fall_to_pinned_memory_and_disk_and_climb_back(tmp_path) -> None:
    with TierStack(
        memory=(
            MemoryTier.on_device(capacity_bytes=SEGMENT_BYTES, device="cuda"),
            MemoryTier.on_host(capacity_bytes=SEGMENT_BYTES),
        ),
        disk=DiskTier(tmp_path, capacity_bytes=4 * FILE_BYTES, pinned=True),
    ) as stack:
        for number in range(4):
            stack.put(segment_of(number, kv=segment_of(number).kv.cuda()))
        for number in (0, 3, 1, 2):
            with stack.acquire(key_of(number)) as lease:
                assert lease.tier == "device"
                assert lease.segment.kv.is_cuda
                assert torch.equal(lease.segment.kv.cpu(), segment_of(number).kv)
        host_lease = stack.memory[1].acquire(stack.memory[1].keys()[0])
        assert host_lease is not None
        assert host_lease.segment.kv.is_pinned()
        host_lease.release()


@pytest.mark.parametrize("family", FAMILIES[:5], ids=lambda family: family.name)
def test_the_self_test_passes_on_the_gpu(family) -> None:
    model = family.model(torch.bfloat16).cuda()
    spec = RotarySpec.from_config(model.config)
    table = RotaryTable.from_model_rotary(
        rotary_module(model), 96, pairing=spec.pairing, dtype=torch.bfloat16
    )
    assert table.cos.is_cuda
    self_test(model, table)
