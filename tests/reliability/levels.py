"""What a process holds: counted exactly where it can be, by its trend where it cannot."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import psutil
import torch

LEAK_BYTES = 1 << 19
"""Growth in the middle turn that is called a leak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What is held at one moment."""

    objects: Counter[str]
    """Instances of our own classes, by name."""
    tensor_bytes: int
    """Memory under all tensors, each once."""
    resident: int
    """Memory of the process, as the system counts it."""


def level() -> Level:
    """What is held now that nothing runs."""
    gc.collect()
    objects: Counter[str] = Counter()
    memory: dict[int, int] = {}
    for thing in gc.get_objects():
        kind = type(thing)
        if str(kind.__module__).startswith("semblend."):
            objects[f"{kind.__module__}.{kind.__qualname__}"] += 1
        elif kind in (torch.Tensor, torch.nn.Parameter):
            storage = thing.untyped_storage()
            # Compilers trace with tensors that have no memory: kinds of their own, or they raise.
            with contextlib.suppress(RuntimeError):
                memory[storage.data_ptr()] = storage.nbytes()
    return Level(
        objects=objects,
        tensor_bytes=sum(memory.values()),
        resident=psutil.Process().memory_info().rss,
    )


def leaks(levels: Sequence[Level]) -> list[str]:
    """What grew over turns that should leave nothing behind; the first turn may warm up.

    Objects and tensors are exact: what the last turns hold, the first ones did. Resident
    memory is not ours alone: an allocator takes a step of 16 MB now and then, which is no
    leak, and a leak is there in most turns, so the median growth of a turn decides.
    """
    found = []
    early, late = levels[1 : len(levels) // 2 + 1], levels[len(levels) // 2 + 1 :]
    for name in late[-1].objects:
        if min(x.objects[name] for x in late) > max(x.objects[name] for x in early):
            found.append(f"{name}: {[x.objects[name] for x in levels]}")
    if min(x.tensor_bytes for x in late) > max(x.tensor_bytes for x in early):
        found.append(f"tensors: {[x.tensor_bytes for x in levels]} bytes")
    growth = [after.resident - before.resident for before, after in pairwise(levels[1:])]
    if median(growth) >= LEAK_BYTES:
        found.append(f"resident memory grows by {growth} bytes")
    return found
