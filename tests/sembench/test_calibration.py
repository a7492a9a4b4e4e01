"""The noise floor: what two cold runs of one prompt differ by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sembench.comparing.calibration import Calibration, read_calibration, summarise_reruns
from sembench.errors import ResultError
from sembench.live.reply import Reply
from tests.sembench.mock_runs import load_json, mock_engine, sembench, short_manifest


def reply(text: str, ttft: float = 10.0, error: str | None = None) -> Reply:
    return Reply(request_id="r", text=text, ttft_ms=ttft, error=error)


def test_equal_reruns_have_a_floor_of_one_and_failed_ones_do_not_count() -> None:
    pairs = [(reply("a b c"), reply("a b c"))] * 4 + [(reply("a"), reply("", error="HTTP 500"))]
    floor = summarise_reruns(pairs)
    assert floor["rouge_l"] == {"value": 1.0, "lo": 1.0, "hi": 1.0, "n": 4}
    assert floor["failed_pairs"] == 1
    assert floor["identical_answers"] == 4


def test_reruns_that_differ_lower_the_floor_and_widen_it() -> None:
    floor = summarise_reruns([(reply("a b"), reply("a b")), (reply("a b"), reply("c d"))])
    assert floor["rouge_l"]["value"] == 0.5
    assert floor["rouge_l"]["lo"] < 0.5 < floor["rouge_l"]["hi"]


@pytest.mark.parametrize(
    ("engine", "resets"), [("gateway", False), ("gateway", True), ("sglang", 0)]
)
def test_the_command_asks_twice_cold_and_gates_read_its_file(
    tmp_path: Path, engine: str, resets: bool
) -> None:
    manifest, output = short_manifest(tmp_path, records=1), tmp_path / "floor.json"
    audit = tmp_path / "audit.jsonl"
    with mock_engine(audit_path=audit) as url:
        reset = ("--reset-url", f"{url}/flush_cache") if resets else ()
        done = sembench(
            "calibrate-noise-floor",
            *("--manifest", manifest, "--output", output, "--base-url", url),
            *("--model", "mock-model", "--engine", engine, *reset),
        )
    assert done.exit_code == 0, done.output
    calibration = read_calibration(output)
    assert calibration.rouge_mean == 1.0
    assert calibration.pairs == load_json(output)["pairs"] == 5
    events = [json.loads(line)["event"] for line in audit.read_text().splitlines()]
    # Both of each pair were cold: nothing was ever found in a cache.
    assert "runtime_materialized" not in events
    assert "exact_prefix_load_advertised" not in events


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({}, "not a calibration"),
        ({"calibration_version": "sembench.calibration.v1"}, "rouge_l"),
        ({"calibration_version": "sembench.calibration.v1", "rouge_l": {"value": 1}}, "lo"),
    ],
)
def test_a_calibration_that_is_none_is_refused_by_field(data: object, field: str) -> None:
    with pytest.raises(ResultError, match=field):
        Calibration.from_dict(data, where="file")
