"""The cost model against arithmetic done by hand, and laws any saving must keep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sembench.comparing.roi import Bucket, RoiModel, buckets, estimate, parse_pairs
from sembench.errors import UsageError
from tests.sembench.mock_runs import sembench

MODEL = RoiModel()


def test_the_default_coefficients_give_the_times_worked_out_by_hand() -> None:
    # 120 + 0.62 x 8000
    assert MODEL.cold_ms(8000) == pytest.approx(5080.0)
    # + 190 + 0.004 x 8000
    assert MODEL.miss_ms(8000) == pytest.approx(5302.0)
    # 120 + 190 + 0.02 x 6800 + 0.62 x 1200
    assert MODEL.hit_ms(8000) == pytest.approx(1190.0)
    # (5302 - 5080) / (5302 - 1190)
    assert MODEL.break_even_hit_rate(8000) == pytest.approx(222 / 4112)


def test_short_prompts_are_left_alone() -> None:
    assert MODEL.hit_ms(255) == MODEL.miss_ms(255) == MODEL.cold_ms(255)
    report = estimate([Bucket(tokens=100, share=1.0, hit_rate=1.0)], MODEL, qps=1.0)
    assert report["mean_saved_ms"] == 0.0
    assert report["buckets"][0]["break_even_hit_rate"] is None


def test_savings_are_the_shares_of_their_buckets() -> None:
    traffic = [
        Bucket(tokens=8000, share=0.5, hit_rate=0.4),
        Bucket(tokens=100, share=0.5, hit_rate=0.4),
    ]
    report = estimate(traffic, MODEL, qps=10.0)
    expected = 0.5 * (5080.0 - (0.4 * 1190.0 + 0.6 * 5302.0))
    assert report["mean_saved_ms"] == pytest.approx(expected)
    assert report["saved_prefill_seconds_per_second"] == pytest.approx(expected / 100)
    assert report["saved_prefill_hours_per_day"] == pytest.approx(expected / 1000 * 10 * 24)


lengths = st.floats(256, 100_000)


@given(lengths, st.floats(0, 1), st.floats(0, 1))
def test_more_hits_never_cost_more(tokens: float, one: float, other: float) -> None:
    def saved(rate: float) -> float:
        bucket = Bucket(tokens=tokens, share=1.0, hit_rate=rate)
        value: float = estimate([bucket], MODEL, qps=1.0)["mean_saved_ms"]
        return value

    low, high = sorted((one, other))
    assert saved(low) <= saved(high) + 1e-6


@given(lengths)
def test_at_the_break_even_rate_nothing_is_saved(tokens: float) -> None:
    rate = MODEL.break_even_hit_rate(tokens)
    if rate is None:
        assert MODEL.hit_ms(tokens) > MODEL.cold_ms(tokens)
        return
    bucket = Bucket(tokens=tokens, share=1.0, hit_rate=rate)
    report = estimate([bucket], MODEL, qps=1.0)
    assert report["mean_saved_ms"] == pytest.approx(0.0, abs=1e-6)


def test_a_slow_lookup_never_pays_on_short_prompts() -> None:
    assert MODEL.break_even_hit_rate(256) is None
    assert RoiModel(lookup_ms=2.0).break_even_hit_rate(256) is not None


def test_histograms_come_as_text_or_csv(tmp_path: Path) -> None:
    path = tmp_path / "h.csv"
    path.write_text("tokens,share\n1024,3\n4096,1\n")
    assert parse_pairs(str(path), flag="--histogram") == {1024.0: 3.0, 4096.0: 1.0}
    assert parse_pairs("1024:3, 4096:1", flag="--histogram") == {1024.0: 3.0, 4096.0: 1.0}
    made = buckets({1024.0: 3.0, 4096.0: 1.0}, hit_rate=0.5, by_bucket={4096.0: 0.9})
    assert [(b.tokens, b.share, b.hit_rate) for b in made] == [(1024, 0.75, 0.5), (4096, 0.25, 0.9)]


@pytest.mark.parametrize("text", ["", "1024", "1024:x", "0:1", "1:1,1:2", "nowhere.csv", "1:2:3"])
def test_a_malformed_histogram_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--histogram"):
        parse_pairs(text, flag="--histogram")


@pytest.mark.parametrize(
    ("histogram", "rate", "by_bucket"),
    [
        ({1.0: 0.0}, 0.5, {}),
        ({1.0: -1.0, 2.0: 2.0}, 0.5, {}),
        ({1.0: 1.0}, 1.5, {}),
        ({1.0: 1.0}, 0.5, {2.0: 0.1}),
    ],
)
def test_impossible_traffic_is_refused(
    histogram: dict[float, float], rate: float, by_bucket: dict[float, float]
) -> None:
    with pytest.raises(UsageError):
        buckets(histogram, hit_rate=rate, by_bucket=by_bucket)


def test_the_command_takes_every_coefficient(tmp_path: Path) -> None:
    flags = [
        *("--prefill-fixed-ms", 0, "--prefill-ms-per-token", 1, "--lookup-ms", 0),
        *("--capture-ms-per-token", 0, "--served-fraction", 1, "--materialize-ms-per-token", 0.1),
        *("--min-prompt-tokens", 1, "--qps", 2),
    ]
    done = sembench("roi", "--histogram", "1000:1", "--hit-rate", 0.5, "--json", *flags)
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    # Half cold at 1000 ms, half at 100 ms.
    assert report["mean_expected_ms"] == pytest.approx(550.0)
    assert sembench("roi", "--histogram", "1000:1").exit_code == 2
    printed = sembench("roi", "--histogram", "1000:1", "--hit-rate", 0.5)
    assert "prefill hours per day" in printed.stdout
    assert (
        sembench("roi", "--histogram", "9:1", "--hit-rate", 1, "--served-fraction", 2).exit_code
        == 2
    )
