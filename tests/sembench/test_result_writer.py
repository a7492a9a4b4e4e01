"""The writer: complete files only, rows on disk at once, resumed runs are the same run."""

import json
import tracemalloc

import pytest

from sembench.errors import ResultError, UsageError
from sembench.metrics import aggregate, by_transform
from sembench.result_writer import ResultWriter
from sembench.results import RequestRow, RunMetadata, read_result
from sembench.spool import SPOOL_SUFFIX

RUN = RunMetadata(run_id="r", engine="offline", manifest_sha256="m")
ROWS = [
    RequestRow(
        item_id=str(number),
        dataset="d",
        transform="ab"[number % 2],
        prompt_tokens=100,
        total_blocks=6,
        exact_blocks=number,
        exact_tokens=number * 16,
    )
    for number in range(5)
]


def writer(path, **changes):
    return ResultWriter(path, run=RUN, config={"k": 1}, environment={}, **changes)


def test_the_file_holds_the_rows_and_their_aggregates(tmp_path):
    path = tmp_path / "deep" / "r.json"
    with writer(path) as out:
        for row in ROWS:
            out.add(row)
        head = out.finish(engine={"flags": []}, paired={"n": 1})
    result = read_result(path)
    assert result.requests == tuple(ROWS)
    assert result.aggregate == aggregate(ROWS) == head["aggregate"]
    assert result.by_transform == by_transform(ROWS)
    assert result.engine == {"flags": []}
    assert result.paired == {"n": 1}
    assert [entry.name for entry in path.parent.iterdir()] == ["r.json"]


def test_an_empty_run_is_a_valid_file(tmp_path):
    with writer(tmp_path / "r.json") as out:
        out.finish()
    assert read_result(tmp_path / "r.json").requests == ()


def test_rows_are_on_disk_before_the_run_ends(tmp_path):
    path = tmp_path / "r.json"
    with writer(path) as out:
        out.add(ROWS[0])
        spool = (tmp_path / ("r.json" + SPOOL_SUFFIX)).read_text(encoding="utf-8")
        assert json.loads(spool.splitlines()[1])["item_id"] == "0"
        assert not path.exists()


def stop_after(path, rows):
    with writer(path) as out:
        for row in rows:
            out.add(row)


def test_a_stopped_run_is_taken_up_where_it_stopped(tmp_path):
    path = tmp_path / "r.json"
    stop_after(path, ROWS[:3])
    with (tmp_path / ("r.json" + SPOOL_SUFFIX)).open("a", encoding="utf-8") as spool:
        spool.write('{"item_id": "3", "cut sho')
    with writer(path, resume=True) as out:
        assert out.resumed_rows == 3
        for row in ROWS:
            if not out.is_done(row.item_id, row.arm):
                out.add(row)
        assert [row.item_id for row in out.rows()] == ["0", "1", "2", "3", "4"]
        out.finish()
    assert read_result(path).requests == tuple(ROWS)
    assert read_result(path).aggregate == aggregate(ROWS)


def test_another_run_is_not_taken_up(tmp_path):
    path = tmp_path / "r.json"
    stop_after(path, ROWS[:1])
    other = RunMetadata(run_id="r", engine="offline", manifest_sha256="another")
    with (
        pytest.raises(UsageError, match="belongs to another run"),
        ResultWriter(path, run=other, config={}, environment={}, resume=True),
    ):
        pass


def test_a_run_that_is_not_resumed_starts_anew(tmp_path):
    path = tmp_path / "r.json"
    stop_after(path, ROWS[:3])
    with writer(path) as out:
        out.add(ROWS[4])
        out.finish()
    assert read_result(path).requests == (ROWS[4],)


def test_a_value_json_cannot_carry_is_refused(tmp_path):
    bad = RequestRow(item_id="i", dataset="d", transform="t", ttft_ms=float("nan"))
    with writer(tmp_path / "r.json") as out, pytest.raises(ResultError, match="cannot represent"):
        out.add(bad)
    with pytest.raises(ResultError, match="with block"):
        writer(tmp_path / "x.json").add(ROWS[0])


def test_a_run_of_ten_thousand_rows_holds_none_of_them(tmp_path):
    path = tmp_path / "r.json"
    tracemalloc.start()
    try:
        with writer(path) as out:
            for number in range(10_000):
                out.add(RequestRow(item_id=str(number), dataset="d", transform="t", plan_ms=1.0))
            out.finish()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < path.stat().st_size / 8
