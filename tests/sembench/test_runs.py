"""Identical runs, against the definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sembench.runs import covered_positions, find_windows, run_length, window_names

few_tokens = st.lists(st.integers(0, 3), max_size=40).map(lambda x: np.array(x, dtype=np.uint32))
donors = st.lists(few_tokens, max_size=3)
sizes = st.integers(1, 9)


def windows(tokens, size):
    return [tuple(tokens[i : i + size].tolist()) for i in range(len(tokens) - size + 1)]


@given(few_tokens, sizes)
def test_windows_have_one_name_exactly_when_they_are_equal(tokens, size):
    names, found = window_names(tokens, size).tolist(), windows(tokens, size)
    assert len(names) == len(found)
    assert len(set(zip(names, found, strict=True))) == len(set(names)) == len(set(found))


def test_large_ids_are_told_apart():
    tokens = np.array([2**32 - 1, 0, 2**31, 2**32 - 1, 0, 2**31], dtype=np.uint32)
    names = window_names(tokens, 3).tolist()
    assert names[0] == names[3]
    assert len(set(names)) == 3


@given(few_tokens, donors, sizes)
def test_a_window_is_found_exactly_where_a_donor_holds_it(target, pool, size):
    found = find_windows(target, pool, size)
    held = {window for donor in pool for window in windows(donor, size)}
    expected = [window in held for window in windows(target, size)]
    assert found.found.tolist() == expected
    for start, there in enumerate(expected):
        if there:
            donor, place = pool[found.donor[start]], int(found.start[start])
            assert (donor[place : place + size] == target[start : start + size]).all()
            assert place + size <= len(donor)
        else:
            assert found.donor[start] == found.start[start] == -1


@given(few_tokens, donors, sizes)
def test_covered_positions_are_those_inside_a_found_window(target, pool, size):
    held = {window for donor in pool for window in windows(donor, size)}
    expected = [False] * len(target)
    for start, window in enumerate(windows(target, size)):
        if window in held:
            expected[start : start + size] = [True] * size
    assert covered_positions(target, pool, size).tolist() == expected


def test_runs_end_at_the_first_difference_or_with_either_text():
    target = np.array([1, 2, 3, 4], dtype=np.uint32)
    assert run_length(target, np.array([0, 2, 3, 9], dtype=np.uint32), 1, 1) == 2
    assert run_length(target, np.array([2, 3], dtype=np.uint32), 1, 0) == 2
    assert run_length(target, np.array([9], dtype=np.uint32), 0, 0) == 0


def test_windows_have_a_length():
    with pytest.raises(ValueError, match="at least 1"):
        window_names(np.array([1], dtype=np.uint32), 0)
