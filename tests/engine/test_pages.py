"""Pages are free exactly when nobody holds them, and tables say where tokens lie."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from semblend.core.errors import CapacityError
from semblend.engine.cache.pages import PageAllocator, PageTable


class AllocatorMachine(RuleBasedStateMachine):
    """Against a dictionary of references."""

    @initialize(pages=st.integers(1, 30))
    def start(self, pages: int) -> None:
        self.allocator = PageAllocator(pages)
        self.model = dict.fromkeys(range(pages), 0)
        self.held: list[np.ndarray] = []

    @rule(count=st.integers(0, 12))
    def allocate(self, count: int) -> None:
        free = [page for page, references in self.model.items() if not references]
        if count > len(free):
            with pytest.raises(CapacityError):
                self.allocator.allocate(count)
            return
        pages = self.allocator.allocate(count)
        assert set(pages.tolist()) <= set(free)
        assert len(set(pages.tolist())) == count
        runs = _runs_of(free)
        if any(len(run) >= count for run in runs) and count:
            assert np.all(np.diff(pages) == 1)
        for page in pages.tolist():
            self.model[page] = 1
        self.held.append(pages)

    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        if self.held:
            pages = data.draw(st.sampled_from(self.held))
            self.allocator.retain(pages)
            self.held.append(pages)
            for page in pages.tolist():
                self.model[page] += 1

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.held:
            pages = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            self.allocator.release(pages)
            for page in pages.tolist():
                self.model[page] -= 1

    @invariant()
    def free_pages_are_those_nobody_holds(self) -> None:
        if hasattr(self, "model"):
            assert self.allocator.free == sum(not n for n in self.model.values())
            assert all(self.allocator.references(p) == n for p, n in self.model.items())


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


def _runs_of(free: list[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for page in free:
        if runs and runs[-1][-1] == page - 1:
            runs[-1].append(page)
        else:
            runs.append([page])
    return runs


def test_a_page_cannot_be_released_twice_or_retained_free() -> None:
    allocator = PageAllocator(4)
    pages = allocator.allocate(2)
    allocator.release(pages)
    with pytest.raises(CapacityError, match="more often"):
        allocator.release(pages)
    with pytest.raises(CapacityError, match="cannot be retained"):
        allocator.retain(pages)


@given(
    order=st.permutations(range(7)),
    page_size=st.integers(1, 5),
    ends=st.tuples(st.integers(0, 7), st.integers(0, 7)),
)
def test_runs_are_the_slots_in_order(
    order: list[int], page_size: int, ends: tuple[int, int]
) -> None:
    table = PageTable(pages=np.array(order, dtype=np.int32), page_size=page_size)
    start, end = sorted(min(edge, table.capacity_tokens) for edge in ends)
    runs = table.runs(start, end)
    joined = [slot for first, length in runs for slot in range(first, first + length)]
    expected = [order[p // page_size] * page_size + p % page_size for p in range(start, end)]
    assert joined == expected == table.slots(start, end).tolist()
    assert all(a + n != b for (a, n), (b, _) in itertools.pairwise(runs))
