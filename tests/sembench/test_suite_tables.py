"""The suite's datasets, lengths, cosine bins and the four-way table, on mock engines."""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchmarks.suite import datasets, engines, four_way, similarity, workloads
from benchmarks.suite.endpoint import Endpoint, context_limit, run
from benchmarks.suite.engines import Arm
from benchmarks.suite.figures import Figures
from benchmarks.suite.pairs import Pair

from sembench.errors import EndpointError, UsageError
from sembench.live.reply import Reply
from sembench.profiles.base import SourceRecord
from tests.sembench.mock_runs import mock_engine

ROWS = Path(__file__).parent / "published"
QUICK = ("--samples", 2, "--post-donor-delay-ms", 0, "--json")


def measured(module: Any, *arguments: object, code: int = 0) -> dict[str, Any]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert run(module.main(list(map(str, arguments)))) == code, printed.getvalue()
    data: dict[str, Any] = json.loads(printed.getvalue())
    return data


def values(report: dict[str, Any], metric: str) -> dict[str, float]:
    return {row["case"]: row["value"] for row in report["rows"] if row["metric"] == metric}


def record(number: int, words: int) -> SourceRecord:
    text = " ".join(f"w{number}.{word}" for word in range(words))
    return SourceRecord(dataset="d", source_id=str(number), context=text)


def test_short_documents_are_put_together_and_long_ones_cut() -> None:
    records = [record(number, 100) for number in range(12)]
    for length in (200, 1000):
        found = datasets.documents(records, length=length, samples=3)
        assert [each.source_id for each, _ in found] == ["0", "1", "2"]
        for each, text in found:
            assert text.startswith(each.context)
            assert 0.75 * 4 * length <= len(text) <= 4 * length
            words = text.split()
            assert len(set(words)) == len(words), "no text stands in a prompt twice"
    assert datasets.documents(records, length=50, samples=1)[0][1] == records[0].context[:200]
    assert datasets.documents(records, length=0, samples=1)[0][1] == records[0].context


def test_a_dataset_without_so_much_text_has_no_such_case(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = argparse.Namespace(
        data=ROWS,
        datasets=["xsum"],
        profile=None,
        hf_revision=None,
        samples=2,
        seed=0,
    )
    names = [name for name, _ in datasets.cases(flags, [200, 32768])]
    assert names == ["xsum, 200 tokens"]
    assert "xsum has not enough text for 32768 tokens" in capsys.readouterr().err


def test_tables_reach_from_4k_to_32k_unless_told_otherwise() -> None:
    flags = argparse.ArgumentParser()
    datasets.add_flags(flags)
    assert flags.parse_args([]).lengths == [4096, 8192, 16384, 32768]


def endpoint_with(limit: int | None) -> Endpoint:
    flags = argparse.Namespace(max_tokens=8)
    made: Any = Endpoint.__new__(Endpoint)
    made.flags, made.limit, made.model = flags, limit, "small"
    return made


def test_lengths_a_model_has_no_room_for_are_left_out_and_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert endpoint_with(8192).fitting([4096, 8192, 16384]) == [4096]
    said = capsys.readouterr().err
    assert "8192 tokens are left out" in said
    assert "16384 tokens are left out" in said
    assert endpoint_with(None).fitting([4096, 32768]) == [4096, 32768]
    with pytest.raises(EndpointError, match="give a length of at most"):
        endpoint_with(2048).fitting([4096])


@pytest.mark.parametrize(
    ("page", "limit"),
    [
        ({"data": [{"id": "m", "max_model_len": 4096}]}, 4096),
        ({"data": [{"id": "other", "max_model_len": 4096}]}, None),
        ({"data": [{"id": "m", "max_model_len": "many"}]}, None),
        ({"error": "none"}, None),
        ([], None),
    ],
)
def test_an_endpoint_may_say_how_long_prompts_are(
    monkeypatch: pytest.MonkeyPatch, page: Any, limit: int | None
) -> None:
    import asyncio

    plain = httpx.AsyncClient
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=page))
    monkeypatch.setattr(httpx, "AsyncClient", lambda **_: plain(transport=transport))
    assert asyncio.run(context_limit("http://there/v1", "m")) == limit


def test_published_datasets_and_logs_run_through_one_command() -> None:
    with mock_engine() as url:
        report = measured(
            workloads,
            *("--base-url", url, *QUICK, "--data", ROWS, "--lengths", 150),
            *("--datasets", "xsum", "samsum", "triviaqa"),
            *("--conversations", ROWS / "wildchat.jsonl"),
        )
    rates = values(report, "hit_rate")
    assert set(rates) == {
        *(f"{name}, 150 tokens" for name in ("xsum", "samsum", "triviaqa")),
        "conversations: wildchat",
    }
    # The second conversation quotes the first one's text, and both go on.
    assert rates["conversations: wildchat"] == pytest.approx(3 / 4)
    assert rates["xsum, 150 tokens"] == 1.0


def test_bins_are_by_cosine_and_the_nearest_come_first() -> None:
    assert similarity.bin_of(0.95) == similarity.bin_of(1.0) == "cosine 0.90 to 1.00"
    assert similarity.bin_of(0.9) == "cosine 0.90 to 1.00"
    assert similarity.bin_of(0.55) == "cosine 0.50 to 0.60"
    assert similarity.bin_of(0.0) == "cosine 0.00 to 0.50"
    assert similarity.bin_of(None) == "nothing before"
    figures = Figures(benchmark="b", context={}, command="c")

    def pair(reused: int) -> Pair:
        cold = Reply(request_id="c", ttft_ms=10.0, prompt_tokens=100)
        warm = Reply(
            request_id="w",
            ttft_ms=5.0,
            prompt_tokens=100,
            exact_tokens=0,
            reused_tokens=reused,
            cached_tokens=reused,
        )
        return Pair(cold=cold, warm=warm)

    found = [(0.52, pair(0)), (0.97, pair(90)), (0.93, pair(0)), (None, pair(0))]
    similarity.add_bins(figures, "log", found)
    rates = values({"rows": [vars_of(row) for row in figures.rows]}, "hit_rate")
    assert list(rates.items()) == [
        ("log, cosine 0.90 to 1.00", 0.5),
        ("log, cosine 0.50 to 0.60", 0.0),
        ("log, nothing before", 0.0),
    ]


def vars_of(row: Any) -> dict[str, Any]:
    return {"case": row.case, "metric": row.metric, "value": row.value}


def test_what_shares_nothing_is_far_and_does_not_hit_and_what_shares_all_is_near() -> None:
    with mock_engine() as url:
        report = measured(similarity, "--base-url", url, *QUICK, "--lengths", 300)
    assert report["context"]["embedder"].startswith("jaccard:")
    rates = values(report, "hit_rate")
    near = [rate for case, rate in rates.items() if "0.90 to 1.00" in case]
    assert near
    assert set(near) == {1.0}
    shares = values(report, "semantic_token_share")
    far = [share for case, share in shares.items() if "0.00 to 0.50" in case]
    assert far
    assert max(far) < min(shares[case] for case in shares if "0.90 to 1.00" in case)


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        urls = {
            Arm.VLLM: stack.enter_context(mock_engine(semantic=False)),
            Arm.VLLM_SEMBLEND: stack.enter_context(mock_engine()),
            Arm.SGLANG: stack.enter_context(mock_engine(semantic=False)),
            Arm.SGLANG_SEMBLEND: stack.enter_context(mock_engine(discovery_only=True)),
        }
        named = [("--endpoint", f"{arm}={url}") for arm, url in urls.items()]
        return measured(
            four_way,
            *("--model", "mock-model", *itertools.chain(*named), *QUICK, "--lengths", 200),
            *("--data", ROWS, "--datasets", "xsum"),
        )


def test_four_engines_are_measured_on_the_same_prompts(table: dict[str, Any]) -> None:
    cases = {row["case"] for row in table["rows"]}
    names = ("moved, 200 tokens", "edited, 200 tokens", "xsum, 200 tokens")
    assert cases == {f"{arm}: {name}" for arm in Arm for name in names}
    lengths: dict[str, set[float]] = {}
    for row in table["rows"]:
        lengths.setdefault(row["case"].split(": ")[1], set()).add(row["context_tokens"])
    assert all(len(found) == 1 for found in lengths.values()), lengths
    assert table["context"]["not_measured"] == "none"


def test_exact_semantic_and_candidates_stand_apart(table: dict[str, Any]) -> None:
    semantic = values(table, "semantic_token_share")
    assert semantic["vllm+semblend: moved, 200 tokens"] > 0.5
    assert values(table, "exact_token_share")["vllm+semblend: moved, 200 tokens"] < 0.2
    for arm in ("vllm", "sglang", "sglang+semblend"):
        assert not semantic[f"{arm}: moved, 200 tokens"]
        assert values(table, "hit_rate")[f"{arm}: moved, 200 tokens"] == 0.0
    # A plain prefix cache hits the edited document's first block; that is no semantic hit.
    exact = values(table, "exact_hit_rate")
    assert not values(table, "semantic_hit_rate")["vllm: edited, 200 tokens"]
    assert exact["vllm: edited, 200 tokens"] == exact["vllm+semblend: edited, 200 tokens"]
    assert values(table, "semantic_hit_rate")["vllm+semblend: moved, 200 tokens"] == 1.0


def test_quality_has_rows_of_its_own(table: dict[str, Any]) -> None:
    assert set(values(table, "answer_as_cold").values()) <= {0.0, 0.5, 1.0}
    leaks = values(table, "donor_fact_leak_rate")
    assert set(leaks) == {f"{arm}: edited, 200 tokens" for arm in Arm}
    assert set(leaks.values()) == {0.0}


def test_the_first_engine_is_the_yardstick(table: dict[str, Any]) -> None:
    over = values(table, "speedup_over_first_engine")
    assert over["vllm: moved, 200 tokens"] == 1.0


def options(*more: str) -> argparse.Namespace:
    flags = argparse.ArgumentParser()
    engines.add_flags(flags)
    return flags.parse_args(["--model", "models/some-model", *more])


def test_engines_are_started_as_users_start_them() -> None:
    for arm in Arm:
        command, environment = engines.start(arm, options("--device", "cuda"), 8123)
        assert "models/some-model" in command
        assert command[command.index("--port") + 1] == "8123"
        assert "cpu" not in command
        assert command[0] == f".venv-{'vllm' if arm.is_vllm else 'sglang'}/bin/python"
        configured = " ".join(command) + json.dumps(environment)
        assert ("segmented" in configured) == arm.ours
    command, _ = engines.start(
        Arm.VLLM, options("--vllm-arguments=--max-model-len 4096", "--device=cpu"), 1
    )
    assert command[-2:] == ["--max-model-len", "4096"]
    assert command[command.index("--dtype") + 1] == "float32"


def test_an_engine_that_does_not_start_is_named_and_the_others_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with mock_engine() as url:
        report = measured(
            four_way,
            *("--model", "mock-model", "--arms", "vllm", "sglang", *QUICK, "--lengths", 200),
            *("--endpoint", f"sglang={url}", "--vllm-python", sys.executable),
            *("--vllm-arguments=--no-such-flag", "--logs", tmp_path),
            code=2,
        )
    assert report["context"]["not_measured"] == "vllm"
    assert {row["case"].split(":")[0] for row in report["rows"]} == {"sglang"}
    assert "vllm was not measured" in capsys.readouterr().err
    assert (tmp_path / "vllm.log").exists()


@pytest.mark.parametrize("told", ["vllm", "vllm=", "trtllm=http://a"])
def test_a_wrong_endpoint_is_named(told: str) -> None:
    with pytest.raises(UsageError, match="--endpoint"):
        engines.running(options("--endpoint", told))


def test_a_python_that_is_not_there_is_named(tmp_path: Path) -> None:
    flags = options("--sglang-python", str(tmp_path / "nowhere"), "--logs", str(tmp_path))
    with pytest.raises(UsageError, match="--sglang-python"), engines.served(Arm.SGLANG, flags):
        pass


def test_every_case_is_a_table_with_the_engines_side_by_side(
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures = Figures(benchmark="b", context={}, command="c", divider=": ")
    shared: dict[str, Any] = {"context_tokens": 5.0, "samples": 1, "backend_confirmed": True}
    for arm, case in itertools.product(("one", "two"), ("moved", "edited")):
        figures.add(f"{arm}: {case}", "speed", 2.0, "x", **shared)
    assert figures.show(as_json=False, output=None) == 0
    printed = capsys.readouterr().out
    assert printed.index("b: moved") < printed.index("b: edited")
    assert printed.count("one") == printed.count("two") == 2
