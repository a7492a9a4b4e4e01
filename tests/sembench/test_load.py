"""Load: arrivals are what they say, lateness counts, goodput is judged by the objective."""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sembench.errors import ResultError, UsageError
from sembench.live.arrivals import ArrivalKind, Arrivals
from sembench.live.load import LoadOptions, run_load
from sembench.live.prompt import Prompt
from sembench.live.reply import Reply
from sembench.load_results import LoadResult, LoadRow, Objective, summarise_load
from sembench.mock_engine import MockFault
from sembench.model import ManifestItem
from sembench.results import read_json
from sembench.spool import spool_path
from tests.sembench.mock_runs import load_json, mock_engine, sembench, short_manifest


def first(arrivals: Arrivals, count: int) -> list[float]:
    return list(itertools.islice(arrivals.offsets(), count))


@given(st.floats(0.1, 1000.0))
def test_constant_arrivals_keep_the_beat(rate: float) -> None:
    offsets = first(Arrivals(kind=ArrivalKind.CONSTANT, rate=rate), 20)
    assert offsets == pytest.approx([number / rate for number in range(20)])


def test_poisson_gaps_have_the_mean_and_spread_of_their_law() -> None:
    offsets = first(Arrivals(kind=ArrivalKind.POISSON, rate=50.0, seed=3), 20_000)
    gaps = [later - earlier for earlier, later in itertools.pairwise(offsets)]
    assert statistics.mean(gaps) == pytest.approx(0.02, rel=0.05)
    # An exponential law's deviation equals its mean, and 1/e of its gaps exceed it.
    assert statistics.stdev(gaps) == pytest.approx(0.02, rel=0.05)
    assert sum(gap > 0.02 for gap in gaps) / len(gaps) == pytest.approx(0.3679, abs=0.02)


def test_the_same_seed_gives_the_same_schedule() -> None:
    one = Arrivals(kind=ArrivalKind.POISSON, rate=5.0, seed=1)
    assert first(one, 50) == first(one, 50)
    assert first(one, 50) != first(replace(one, seed=2), 50)


def test_open_arrivals_need_a_rate() -> None:
    with pytest.raises(UsageError, match="--rate"):
        Arrivals(kind=ArrivalKind.POISSON)


class SlowClient:
    """Answers after a fixed time and notes how many were in flight."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.in_flight = 0
        self.most = 0

    async def complete(self, prompt: Prompt) -> Reply:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        await asyncio.sleep(self.seconds)
        self.in_flight -= 1
        return Reply(request_id=prompt.request_id, text="x", ttft_ms=1.0, latency_ms=2.0)

    async def close(self) -> None:
        pass


ITEM = ManifestItem(
    item_id="i",
    dataset="d",
    source_id="s",
    transform="t",
    donor_prompts=(),
    recipient_prompt="hello",
)


def sent_by(
    client: SlowClient, options: LoadOptions, done: Sequence[LoadRow] = ()
) -> list[LoadRow]:
    async def go() -> list[LoadRow]:
        return [row async for row in run_load(client, [ITEM], options, done=done)]

    return asyncio.run(go())


def test_a_closed_loop_never_has_more_in_flight_than_users() -> None:
    client = SlowClient(0.001)
    options = LoadOptions(
        run_id="r", arrivals=Arrivals(kind=ArrivalKind.CLOSED), concurrency=3, requests=20
    )
    sent = sent_by(client, options)
    assert len(sent) == 20
    assert client.most == 3
    assert len({row.request_id for row in sent}) == 20


def test_waiting_inside_the_client_counts_against_the_endpoint() -> None:
    # Ten requests are due within 10 ms, the endpoint takes one at a time for 20 ms each.
    options = LoadOptions(
        run_id="r",
        arrivals=Arrivals(kind=ArrivalKind.CONSTANT, rate=1000.0),
        concurrency=1,
        requests=10,
    )
    sent = sent_by(SlowClient(0.02), options)
    last = max(sent, key=lambda row: row.due_s)
    # Nine others went first: at least 9 x 20 ms less the 9 ms it was due later.
    assert last.lag_ms >= 9 * 20 - 9 - 1
    assert last.ttft_ms is not None
    assert last.ttft_ms >= last.lag_ms


def row(due: float, *, ttft: float = 10.0, lag: float = 0.0, **changes: Any) -> LoadRow:
    return LoadRow(
        position=int(due * 10),
        item_id="i",
        request_id=str(due),
        due_s=due,
        lag_ms=lag,
        **{"ttft_ms": ttft + lag, "latency_ms": 100.0 + lag, "output_tokens": 10, **changes},
    )


WINDOW = {"warmup_seconds": 1.0, "cooldown_seconds": 1.0}


def test_goodput_counts_answered_requests_within_the_objective_and_the_window() -> None:
    sent = [
        row(0.0),
        row(1.0),
        row(2.0, ttft=60.0),
        row(3.0, lag=80.0),
        row(4.0, error="HTTP 500"),
        row(5.0),
        row(6.0),
    ]
    report = summarise_load(sent, Objective(ttft_ms=50.0), **WINDOW)
    # Counted: due 1 to 5 s. Good: due 1 and 5. The window ends 100 ms after the last is due.
    assert report["requests_counted"] == 5
    assert report["failed"] == 1
    assert report["slo_attainment"] == pytest.approx(2 / 5)
    assert report["window_seconds"] == pytest.approx(4.1)
    assert report["goodput_requests_per_second"] == pytest.approx(2 / 4.1)


def test_every_session_of_a_stopped_run_warms_up_and_the_pause_is_no_time() -> None:
    before = [row(0.0), row(1.0), row(2.0)]
    after = [row(due, session_s=2.5) for due in (2.5, 3.5, 4.5)]
    report = summarise_load([*before, *after], Objective(), warmup_seconds=1.0)
    # Due 0 and 2.5 are each the first of their session. Windows: 1 to 2.1 and 3.5 to 4.6.
    assert report["sessions"] == 2
    assert report["requests_counted"] == 4
    assert report["window_seconds"] == pytest.approx(2.2)


@pytest.mark.parametrize("kind", list(ArrivalKind))
def test_a_stopped_schedule_goes_on_with_what_it_lacks(kind: ArrivalKind) -> None:
    options = LoadOptions(
        run_id="r",
        arrivals=Arrivals(kind=kind, rate=500.0, seed=2),
        concurrency=2,
        requests=12,
    )
    whole = {each.position: each for each in sent_by(SlowClient(0.001), options)}
    # Stopped after seven answers with the fifth still on its way.
    done = [whole[position] for position in (0, 1, 2, 3, 5, 6, 7)]
    rest = sent_by(SlowClient(0.001), options, done)
    assert sorted(each.position for each in rest) == [4, 8, 9, 10, 11]
    assert {each.request_id for each in rest} == {whole[n].request_id for n in (4, 8, 9, 10, 11)}
    if kind is ArrivalKind.CLOSED:
        assert min(each.due_s for each in rest) >= max(each.end_s for each in done)
        return
    # The same moments of the schedule as without a stop, and nobody is late for the pause.
    assert [each.due_s for each in rest] == [whole[each.position].due_s for each in rest]
    assert {each.session_s for each in rest} == {whole[4].due_s}


def test_rows_are_read_back_as_they_were_written() -> None:
    for one in (row(1.0), row(2.0, error="HTTP 500", ttft_ms=None, tpot_ms=3.5, session_s=1.5)):
        assert LoadRow.from_dict(one.to_dict()) == one
    with pytest.raises(ResultError, match="due_s"):
        LoadRow.from_dict({**row(1.0).to_dict(), "due_s": "soon"})


def test_an_objective_on_a_time_that_was_not_measured_is_not_met() -> None:
    assert not Objective(tpot_ms=1e9).met(row(0.0, tpot_ms=None))
    assert Objective().met(row(0.0, tpot_ms=None))


def test_a_load_run_of_nothing_has_no_rates() -> None:
    report = summarise_load([], Objective(), **WINDOW)
    assert report["goodput_requests_per_second"] is None
    assert report["slo_attainment"] is None


@pytest.mark.parametrize("arrival", ["poisson", "constant", "closed"])
def test_the_command_sends_what_was_asked_and_reports_goodput(tmp_path: Path, arrival: str) -> None:
    manifest, output = short_manifest(tmp_path, records=1), tmp_path / "load.json"
    with mock_engine() as url:
        done = sembench(
            "run-load",
            *("--manifest", manifest, "--output", output, "--base-url", url),
            *("--model", "mock-model", "--arrival", arrival, "--requests", 12),
            *("--rate", 200, "--concurrency", 4, "--slo-ttft-ms", 60_000),
            *("--metrics-url", f"{url}/metrics"),
        )
    assert done.exit_code == 0, done.output
    report = load_json(output)
    assert report["aggregate"]["completed"] == 12
    assert report["aggregate"]["slo_attainment"] == 1.0
    assert len({row["request_id"] for row in report["requests"]}) == 12
    assert report["engine"]["prometheus"]["semantics"]["prompt_tokens"] > 0


def test_failures_under_load_are_counted_and_never_good(tmp_path: Path) -> None:
    manifest, output = short_manifest(tmp_path, records=1), tmp_path / "load.json"
    with mock_engine(fault=MockFault.ERROR, fault_every=3) as url:
        done = sembench(
            "run-load",
            *("--manifest", manifest, "--output", output, "--base-url", url),
            *("--model", "mock-model", "--requests", 12, "--no-serve-donors", "--skip-verify"),
        )
    assert done.exit_code == 0, done.output
    aggregate = load_json(output)["aggregate"]
    assert aggregate["failed"] == 4
    assert aggregate["slo_attainment"] == pytest.approx(8 / 12)


def load_command(manifest: Path, output: Path, url: str, *more: object) -> list[object]:
    return [
        "run-load",
        *("--manifest", manifest, "--output", output, "--base-url", url),
        *("--model", "mock-model", "--requests", 40, "--concurrency", 4, "--no-serve-donors"),
        *("--skip-verify", *more),
    ]


def test_an_endpoint_that_went_away_stops_the_load_and_resuming_sends_the_rest(
    tmp_path: Path,
) -> None:
    manifest, output = short_manifest(tmp_path, records=1), tmp_path / "load.json"
    with mock_engine(fault=MockFault.ERROR, fault_every=1) as url:
        gone = sembench(*load_command(manifest, output, url, "--max-consecutive-errors", 5))
    assert gone.exit_code == 2
    assert "--resume" in str(gone.exception)
    assert not output.exists()
    with mock_engine() as url:
        done = sembench(*load_command(manifest, output, url, "--resume"))
    assert done.exit_code == 0, done.output
    assert LoadResult.from_dict(read_json(output), where=str(output)).aggregate["completed"] == 40


def test_a_killed_load_run_is_taken_up_where_it_was(tmp_path: Path) -> None:
    manifest, output = short_manifest(tmp_path, records=1), tmp_path / "load.json"
    spool = spool_path(output)
    with mock_engine(decode_ms_per_token=20.0) as url:
        command = load_command(manifest, output, url)
        running = subprocess.Popen([sys.executable, "-m", "sembench", *map(str, command)])
        while not spool.exists() or len(spool.read_text().splitlines()) < 6:
            assert running.poll() is None
            time.sleep(0.01)
        running.kill()
        running.wait()
        identity, *before = [json.loads(line) for line in spool.read_text().split("\n")[:-1]]
        other = sembench(*load_command(manifest, output, url, "--resume", "--concurrency", 5))
        assert other.exit_code == 2, "another schedule is another run"
        done = sembench(*command, "--resume")
    assert done.exit_code == 0, done.output
    result = LoadResult.from_dict(read_json(output), where=str(output))
    assert [each.to_dict() for each in result.requests[: len(before)]] == before
    assert sorted(each.position for each in result.requests) == list(range(40))
    assert result.run.run_id == identity["run_id"]
    assert result.aggregate["sessions"] == 2
    assert not spool.exists()
