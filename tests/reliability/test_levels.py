"""The check for leaks finds a leak, and takes an allocator's step for what it is."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from semblend.core.namespace import Namespace
from tests.reliability.levels import Level, leaks, level

MIB = 1 << 20
TURNS = 9


def resident(*growth: int) -> list[Level]:
    found = level()
    sizes = [sum(growth[:n]) for n in range(len(growth) + 1)]
    return [
        Level(objects=found.objects, tensor_bytes=found.tensor_bytes, resident=size)
        for size in sizes
    ]


@pytest.mark.parametrize(
    "growth",
    [
        (50 * MIB, 0, 0, 0, 0, 0, 0, 0),
        (0, 0, 0, 16 * MIB, 0, 0, 0, 0),
        (0, 16 * MIB, 0, 0, -MIB, 0, 16 * MIB, 0),
        (9 * MIB, 3 * MIB, MIB, 0, 0, 1000, 0, 0),
    ],
)
def test_steps_of_an_allocator_are_no_leak(growth: tuple[int, ...]) -> None:
    assert leaks(resident(*growth)) == []


@pytest.mark.parametrize(
    "growth",
    [
        (MIB,) * 8,
        (0, MIB, MIB, 0, MIB, MIB, 2 * MIB, MIB),
        (0, MIB, MIB, MIB, -3 * MIB, 4 * MIB, MIB, MIB),
    ],
)
def test_growth_in_most_turns_is_a_leak_though_some_are_flat(growth: tuple[int, ...]) -> None:
    assert leaks(resident(*growth))


@dataclass
class Kept:
    """What is not let go of."""

    things: list[object]


def fresh_memory(size: int) -> mmap.mmap:
    """Pages nobody has: an allocator may have room left over from tests before."""
    memory = mmap.mmap(-1, size)
    memory.write(b"x" * size)
    return memory


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Namespace.of(model="m"), "semblend.core.namespace.Namespace"),
        (lambda: torch.zeros(16), "tensors"),
        (lambda: fresh_memory(2 * MIB), "resident"),
    ],
)
def test_what_is_kept_every_turn_is_found(make: Callable[[], object], named: str) -> None:
    kept, levels = Kept([]), []
    for _ in range(TURNS):
        levels.append(level())
        kept.things.append(make())
    assert any(line.startswith(named) for line in leaks(levels)), leaks(levels)


def test_what_comes_and_goes_is_not() -> None:
    levels = []
    for turn in range(TURNS):
        held = [torch.zeros(1000 * (turn % 3 + 1)), Namespace.of(model="m")]
        levels.append(level())
        del held
    assert leaks(levels) == []
