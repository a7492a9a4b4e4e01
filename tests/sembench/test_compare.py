"""Comparisons are paired by item, carry intervals, and refuse what cannot be compared."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sembench import metrics
from sembench.comparing.compare import compare
from sembench.errors import ResultError
from sembench.reports.comparison import comparison_markdown
from sembench.results import RequestRow, Result, RunMetadata, write_result
from tests.sembench.mock_runs import sembench


def result(times: dict[str, float], *, quality: bool | None = True, sha: str = "m") -> Result:
    rows = tuple(
        RequestRow(
            item_id=item,
            dataset="d",
            transform="t",
            ttft_ms=time,
            quality_pass=quality,
            exact_block_hit_rate=0.5,
        )
        for item, time in times.items()
    )
    return Result(
        run=RunMetadata(run_id="r", engine="gateway", manifest_sha256=sha),
        created_at_utc="",
        config={},
        environment={},
        aggregate=metrics.aggregate(rows),
        by_transform={},
        requests=rows,
    )


SLOW = result({f"i{n}": 100.0 + n for n in range(20)})
FAST = result({f"i{n}": (100.0 + n) / (2.0 + n / 20) for n in range(20)})


def test_ratios_are_those_of_pairs_not_of_medians() -> None:
    difference = compare([("slow", SLOW), ("fast", FAST)])["differences"]["fast"]["ttft_ms"]
    expected = statistics.median(2.0 + n / 20 for n in range(20))
    assert difference["value"] == pytest.approx(expected)
    assert difference["lo"] <= expected <= difference["hi"]
    assert difference["kind"] == "ratio"
    assert difference["significant"] is True


def test_a_result_against_itself_has_no_difference() -> None:
    found = compare([("a", SLOW), ("b", SLOW)])["differences"]["b"]
    assert found["ttft_ms"]["value"] == 1.0
    assert found["quality_pass"]["value"] == 0.0
    assert not any(value["significant"] for value in found.values() if value)


def test_only_items_of_both_count_and_failed_ones_do_not() -> None:
    rows = [replace(SLOW.requests[0], error="HTTP 500"), *SLOW.requests[1:10]]
    partial = replace(SLOW, requests=tuple(rows))
    assert compare([("a", SLOW), ("b", partial)])["differences"]["b"]["ttft_ms"]["n"] == 9


def test_what_nobody_measured_is_null() -> None:
    found = compare([("a", result({"i": 1.0}, quality=None)), ("b", FAST)])
    assert found["figures"]["quality_pass"]["a"] is None
    assert found["differences"]["b"]["quality_pass"] is None
    assert "not measured" in comparison_markdown(found)


def test_three_results_are_each_held_to_the_first() -> None:
    found = compare([("a", SLOW), ("b", FAST), ("c", SLOW)])
    assert set(found["differences"]) == {"b", "c"}
    assert found["baseline"] == "a"


def test_different_manifests_and_lonely_results_are_refused() -> None:
    with pytest.raises(ResultError, match="at least two"):
        compare([("a", SLOW)])
    other = result({"i1": 1.0}, sha="other")
    with pytest.raises(ResultError, match="different manifests"):
        compare([("a", SLOW), ("b", other)])
    shared = compare([("a", SLOW), ("b", other)], allow_different_manifests=True)
    assert shared["differences"]["b"]["ttft_ms"]["n"] == 1


@pytest.mark.parametrize("suffix", [".json", ".md", None, ".xls"])
def test_the_command_prints_or_writes(tmp_path: Path, suffix: str | None) -> None:
    paths = []
    for name, made in (("slow", SLOW), ("fast", FAST)):
        paths.append(tmp_path / f"{name}.json")
        write_result(paths[-1], made)
    output: tuple[Any, ...] = ()
    if suffix is not None:
        output = ("--output", tmp_path / f"out{suffix}")
    done = sembench("compare", "--result", *paths, *output)
    assert done.exit_code == (2 if suffix == ".xls" else 0)
    if suffix == ".json":
        assert json.loads((tmp_path / "out.json").read_text())["baseline"] == "slow"
    elif suffix == ".md":
        assert "| ttft_ms |" in (tmp_path / "out.md").read_text().replace("\\_", "_")
    elif suffix is None:
        assert "ttft_ms" in done.stdout
