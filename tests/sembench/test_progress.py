"""Progress bars: everything passes through, and logs stay clean."""

import itertools

from sembench.progress import progress_bar, track


def test_values_pass_through_in_order_and_one_at_a_time():
    endless = track(itertools.count(), description="counting")
    assert list(itertools.islice(endless, 3)) == [0, 1, 2]
    assert list(track("abc", description="spelling", total=3)) == ["a", "b", "c"]


def test_nothing_is_written_where_there_is_no_terminal(capfd):
    list(track(range(100), description="silent", total=100))
    assert capfd.readouterr() == ("", "")
    assert progress_bar().disable
