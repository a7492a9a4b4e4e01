"""The suite's tables on the mock engine: shape, honesty and what happens without confirmation."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchmarks.suite.backend import Backend, describe
from benchmarks.suite.endpoint import run
from benchmarks.suite.figures import Figures
from benchmarks.suite.judging import JudgeError, judge, perplexity
from benchmarks.suite.workloads import read_conversations

from sembench.clock import use_clock
from sembench.errors import SemBenchError
from sembench.live.reply import Reply
from sembench.mock_engine import Cheat
from tests.sembench.mock_runs import mock_engine
from tests.sembench.virtual_clock import VirtualClock

ROOT = Path(__file__).parents[2]
SMALL = {
    "ttft_by_context": ("--lengths", 200, 300),
    "instruction_change": ("--length", 200),
    "multi_turn": ("--length", 200, "--turns", 3),
    "workloads": ("--lengths", 300),
    "quality": ("--lengths", 200),
    "similarity": ("--lengths", 300),
}
ROW = {
    "case",
    "metric",
    "value",
    "unit",
    "target",
    "ok",
    "context_tokens",
    "samples",
    "backend_confirmed",
    "interval",
}


def suite(name: str, url: str, *more: object, code: int = 0) -> dict[str, Any]:
    """Run a benchmark as its command does, in this process, so that it shares our clock."""
    shared = ("--samples", 2, "--post-donor-delay-ms", 0, "--json")
    flags = ["--base-url", url, *shared, *SMALL[name], *more]
    module = importlib.import_module(f"benchmarks.suite.{name}")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert run(module.main(list(map(str, flags)))) == code, printed.getvalue()
    data: dict[str, Any] = json.loads(printed.getvalue())
    return data


def values(report: dict[str, Any], metric: str) -> dict[str, float]:
    return {row["case"]: row["value"] for row in report["rows"] if row["metric"] == metric}


@pytest.fixture(scope="module")
def reports() -> dict[str, dict[str, Any]]:
    clock = VirtualClock()
    with mock_engine(prefill_ms_per_token=1.0, clock=clock) as url, use_clock(clock):
        return {name: suite(name, url) for name in SMALL}


@pytest.mark.parametrize("name", sorted(SMALL))
def test_every_figure_states_what_it_depends_on(
    reports: dict[str, dict[str, Any]], name: str
) -> None:
    report = reports[name]
    assert report["benchmark"] == name
    assert report["command"].startswith("python -m benchmarks.suite.")
    assert set(report["context"]) >= {
        "model",
        "backend",
        "cache_configuration",
        "hardware",
        "data",
    }
    assert report["rows"]
    for row in report["rows"]:
        assert set(row) == ROW
        assert row["samples"] >= 1 or row["value"] is None


def test_hits_are_confirmed_and_faster_and_misses_are_neither(
    reports: dict[str, dict[str, Any]],
) -> None:
    report = reports["ttft_by_context"]
    for case, speedup in values(report, "hit_speedup").items():
        assert values(report, "semantic_token_share")[case] > 0.7
        # Times are simulated compute alone: a token reused is a millisecond saved.
        assert speedup > 3.0
        assert values(report, "miss_speedup")[case] == pytest.approx(1.0)
    by_metric = {row["metric"]: row for row in report["rows"]}
    assert by_metric["hit_ttft"]["backend_confirmed"] is True
    assert by_metric["cold_ttft"]["backend_confirmed"] is None


def test_changed_instructions_leave_an_exact_cache_nothing(
    reports: dict[str, dict[str, Any]],
) -> None:
    report = reports["instruction_change"]
    assert values(report, "exact_token_share")["other instruction"] == 0.0
    assert values(report, "hit_rate")["other instruction"] == 1.0
    assert values(report, "warm_accuracy") == values(report, "cold_accuracy")


def test_a_dialogue_is_served_by_the_exact_cache_from_its_second_turn(
    reports: dict[str, dict[str, Any]],
) -> None:
    shares = values(reports["multi_turn"], "exact_token_share")
    assert shares["turn 1"] == 0.0
    assert min(shares["turn 2"], shares["turn 3"]) > 0.7


def test_datasets_are_reported_apart(reports: dict[str, dict[str, Any]]) -> None:
    rates = values(reports["workloads"], "hit_rate")
    assert len(rates) >= 3
    assert set(rates.values()) == {1.0}


def test_quality_counts_the_donors_facts(reports: dict[str, dict[str, Any]]) -> None:
    report = reports["quality"]
    assert values(report, "donor_fact_leak_rate") == {"facts, edited, 200 tokens": 0.0}
    assert values(report, "ppl_ratio")["facts, moved, 200 tokens"] == pytest.approx(1.0)
    assert values(report, "warm_accuracy")["facts, edited, 200 tokens"] == 1.0


def test_a_leaking_engine_shows_in_the_quality_table() -> None:
    with mock_engine(cheat=Cheat.LEAK_DONOR_FACTS) as url:
        report = suite("quality", url)
    assert values(report, "donor_fact_leak_rate")["facts, edited, 200 tokens"] == 1.0
    assert values(report, "warm_accuracy")["facts, edited, 200 tokens"] == 0.0


def test_a_silent_backend_has_no_hits_to_show_and_misses_its_target() -> None:
    with mock_engine(cheat=Cheat.MISSING_METRICS) as url:
        report = suite("workloads", url, "--min-speedup", 1.0, code=1)
    rates = [row for row in report["rows"] if row["metric"] == "hit_rate"]
    assert all(row["value"] is None for row in rates)
    assert all(row["backend_confirmed"] is None for row in rates)


def test_logs_of_both_shapes_are_replayed(tmp_path: Path) -> None:
    log = tmp_path / "chats.jsonl"
    words = " ".join(f"w{number}" for number in range(120))
    log.write_text(
        json.dumps(
            {
                "messages": [
                    {"role": "system", "content": "be kind"},
                    {"role": "user", "content": f"{words}. Who?"},
                    {"role": "assistant", "content": "Somebody."},
                    {"role": "user", "content": "And why?"},
                ]
            }
        )
        + "\n\n"
        + json.dumps({"conversations": [{"from": "human", "value": f"Again {words}. Where?"}]})
        + "\n"
    )
    assert [len(messages) for messages in read_conversations(log)] == [3, 1]
    with mock_engine() as url:
        report = suite("workloads", url, "--conversations", log)
    # The second turn extends the first, the second conversation repeats its document.
    assert values(report, "hit_rate")["conversations: chats"] == pytest.approx(2 / 3)
    log.write_text('{"turns": []}\n')
    with pytest.raises(SemBenchError, match=r"chats.jsonl:1"):
        list(read_conversations(log))


def test_a_judge_command_is_asked_with_both_answers(tmp_path: Path) -> None:
    script = tmp_path / "judge.py"
    script.write_text(
        "import json, sys\npair = json.load(sys.stdin)\n"
        "print(float(pair['baseline'] == pair['semblend']))\n"
    )
    command = f"{sys.executable} {script}"
    assert judge(command, baseline="a", semblend="a") == 1.0
    assert judge(command, baseline="a", semblend="b") == 0.0
    with mock_engine() as url:
        report = suite("quality", url, "--judge-command", command)
    assert values(report, "judge_score")["facts, moved, 200 tokens"] == 1.0


@pytest.mark.parametrize("body", ["print('good')", "raise SystemExit(3)", "", "print('nan')"])
def test_a_judge_that_does_not_judge_is_refused(tmp_path: Path, body: str) -> None:
    script = tmp_path / "judge.py"
    script.write_text(body)
    with pytest.raises(JudgeError, match="--judge-command"):
        judge(f"{sys.executable} {script}", baseline="a", semblend="b")


def test_perplexity_is_that_of_the_chosen_tokens() -> None:
    # Chosen tokens of probability 1/2 and 1/8: the geometric mean is 1/4.
    logprobs = ({"a": -0.6931471805599453, "b": -3.0}, {"c": -2.0794415416798357})
    reply = Reply(request_id="r", top_logprobs=logprobs)
    assert perplexity(reply) == pytest.approx(4.0)
    assert perplexity(Reply(request_id="r")) is None


def test_a_missing_figure_misses_its_target() -> None:
    figures = Figures(benchmark="b", context={}, command="c")
    shared: dict[str, Any] = {"context_tokens": None, "samples": 0, "backend_confirmed": None}
    figures.add("x", "m", None, "x", at_least=1.0, **shared)
    figures.add("x", "m", 0.5, "x", at_most=1.0, **shared)
    figures.add("x", "m", 0.5, "x", **shared)
    assert [row.ok for row in figures.rows] == [False, True, None]
    assert figures.failed


def test_an_endpoint_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.suite.quality", "--base-url", "http://127.0.0.1:9"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def described(pages: dict[str, Any]) -> Backend:
    """What a backend with these pages (JSON, or text) says about itself."""

    def answer(request: httpx.Request) -> httpx.Response:
        page = pages.get(request.url.path)
        if page is None:
            return httpx.Response(404, json={"detail": "Not Found"})
        return httpx.Response(200, text=page if isinstance(page, str) else json.dumps(page))

    return asyncio.run(describe("http://there/v1", transport=httpx.MockTransport(answer)))


def test_engines_say_how_their_caches_are_set() -> None:
    state = {
        "server": {"version": "0.4.0"},
        "store": {
            "tiers": [{"name": "host", "capacity": 1 << 30}],
            "index": {"capacity": 1 << 28},
            "pool": {"pages": 99},
        },
    }
    found = described({"/semblend/state": state})
    assert found.name == "semblend serve 0.4.0"
    assert (
        found.caches == "host tier 1 GiB, index 0.25 GiB, exact prefix cache in a pool of 99 pages"
    )
    metrics = 'vllm:cache_config_info{block_size="16",enable_prefix_caching="True"} 1.0\n'
    found = described({"/version": {"version": "0.32.0"}, "/metrics": metrics})
    assert (found.name, found.caches) == (
        "vLLM 0.32.0",
        "enable_prefix_caching True, block_size 16",
    )
    info = {"version": "0.5.23", "disable_radix_cache": False, "page_size": 1}
    found = described({"/get_server_info": info})
    assert (found.name, found.caches) == ("SGLang 0.5.23", "disable_radix_cache False, page_size 1")


@pytest.mark.parametrize("pages", [{}, {"/version": []}, {"/semblend/state": {"store": 1}}])
def test_an_engine_that_says_nothing_useful_is_not_described(pages: dict[str, Any]) -> None:
    assert described(pages) == Backend()


def test_what_cannot_be_measured_is_refused_in_one_line(tmp_path: Path) -> None:
    with mock_engine() as url:
        for arguments in (["--samples", "0"], ["--data", str(tmp_path / "nowhere")]):
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.suite.workloads", "--base-url", url, *arguments],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 2
            assert "Traceback" not in done.stderr
