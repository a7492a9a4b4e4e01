"""Memory for kept K/V: any shape and type, owning exactly its bytes, given back when let go."""

from __future__ import annotations

import gc
import mmap

import psutil
import pytest
import torch

from semblend.kv import host_memory
from semblend.kv.host_memory import HUGE_PAGE_BYTES, host_empty

BIG = (12, 2, 512, 2, 64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(3, 5), BIG, (7, 2, 333, 3, 40)])
def test_it_is_an_ordinary_tensor_that_owns_exactly_its_bytes(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    kept = host_empty(shape, dtype)
    assert (kept.shape, kept.dtype) == (shape, dtype)
    assert kept.is_contiguous()
    # A tier counts what a tensor's storage holds; a view of more would be copied.
    assert kept.untyped_storage().nbytes() == kept.nbytes
    kept.fill_(1.5)
    assert bool((kept.view(-1)[[0, -1]] == 1.5).all())


def test_a_part_keeps_the_memory_and_the_last_reference_gives_it_back() -> None:
    before = psutil.Process().memory_info().rss
    kept = [host_empty(BIG, torch.float32).fill_(2.0) for _ in range(40)]
    held = psutil.Process().memory_info().rss - before
    assert held > 30 * kept[0].nbytes
    part = kept[7][3, 1, 9, 0, :4]
    kept.clear()
    gc.collect()
    assert part.tolist() == [2.0] * 4
    assert psutil.Process().memory_info().rss - before < held / 2


def test_without_huge_pages_it_is_plain_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoHugePages(mmap.mmap):
        def madvise(self, *_: object) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(host_memory.mmap, "mmap", NoHugePages)
    kept = host_empty(BIG, torch.float32)
    assert kept.nbytes > HUGE_PAGE_BYTES
    kept.zero_()
    monkeypatch.delattr(host_memory.mmap, "MADV_HUGEPAGE")
    assert host_empty(BIG, torch.float32).shape == BIG
