"""The page lists every fault point there is, with what was seen of it."""

from __future__ import annotations

from semblend.core.faults import FaultPoint
from tests.reliability.fault_results import ENGINES, committed_table, meanings


def test_every_point_says_what_it_is() -> None:
    assert list(meanings()) == list(FaultPoint)


def test_the_committed_table_has_every_point_and_a_result_of_every_engine() -> None:
    rows = {
        row.split("|")[1].strip(): row.split("|")[2:-1] for row in committed_table().split("\n")
    }
    for point in FaultPoint:
        cells = rows[f"`{point}`"]
        assert len(cells) == 1 + len(ENGINES)
        assert "not run" not in " ".join(cells), point
