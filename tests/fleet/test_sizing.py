"""The sizes in the document are computed from the measured constants, not written by hand."""

import json
from pathlib import Path

from benchmarks.fleet_sizing import CONSTANTS, size, table

ROOT = Path(__file__).resolve().parents[2]
MEASURED = json.loads(CONSTANTS.read_text(encoding="utf-8"))


def one(**changes):
    shape = {
        "workers": 100,
        "donors_per_worker": 1000,
        "tokens_per_donor": 4096,
        "sampling": 8,
        "prompts_per_s": 2.0,
    }
    return size(MEASURED, **{**shape, **changes})


def test_the_document_holds_the_computed_table():
    assert table(MEASURED, 2.0) in (ROOT / "docs" / "fleet.md").read_text(encoding="utf-8")


def test_the_arithmetic_gives_back_what_was_measured():
    same = size(
        MEASURED,
        workers=MEASURED["workers"],
        donors_per_worker=MEASURED["donors"] // MEASURED["workers"],
        tokens_per_donor=MEASURED["tokens_per_donor"],
        sampling=MEASURED["sampling"],
        prompts_per_s=1.0,
    )
    measured = MEASURED["index_bytes_per_donor"] * MEASURED["donors"]
    assert abs(same.index_bytes / measured - 1) < 0.05
    assert abs(same.replay_s * MEASURED["events_per_s"] / MEASURED["donors"] - 1) < 0.05


def test_more_of_anything_takes_more():
    assert one(workers=200).index_bytes == 2 * one().index_bytes
    assert one(tokens_per_donor=8192).index_bytes > one().index_bytes
    assert one(sampling=16).index_bytes < one().index_bytes
    assert one(prompts_per_s=4.0).events_per_s == 2 * one().events_per_s


def test_the_measured_directory_keeps_its_promise():
    assert MEASURED["donors"] >= 10_000_000
    assert MEASURED["lookup_tokens"] == 8192
    assert MEASURED["lookup_ms_p50"] <= 2.0
    assert MEASURED["found_share"] == 1.0
    assert MEASURED["wrong_share"] == 0.0
