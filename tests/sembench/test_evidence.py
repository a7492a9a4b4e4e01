"""The evidence's rules: which rates are offered, what is compared, and that a run can go on."""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.evidence import figures, page
from benchmarks.evidence.against import findings
from benchmarks.evidence.arms import ARMS, BY_NAME, Caching, Machine, Memory, engine_options
from benchmarks.evidence.asks import items_of
from benchmarks.evidence.cells import (
    ONE_BY_ONE,
    Cell,
    CellName,
    Request,
    Task,
    all_cells,
    passes_of,
)
from benchmarks.evidence.groups import Groups
from benchmarks.evidence.measuring import Measuring, OutOfTimeError, task_of, text_of
from benchmarks.evidence.plots import NOTHING, curve, draw
from benchmarks.evidence.running import Run, is_done
from benchmarks.evidence.settings import Settings
from benchmarks.evidence.sweep import SweepRule, highest, sweep
from benchmarks.evidence.table import report_of
from benchmarks.evidence.workloads import NEVER_SEEN, WORKLOADS, zipf_draw

from sembench.errors import UsageError
from sembench.live.reply import Reply
from sembench.load_results import LoadRow

SETTINGS = Settings(
    machine=Machine.CPU,
    model="model",
    tokenizer="model",
    tokens=1024,
    requests=6,
    max_tokens=4,
    seeds=1,
    limit_ms=2000.0,
    rate_start=50.0,
    rate_factor=2.0,
    rate_most=3,
    rate_refine=0,
    over_time=0,
    cache_bytes=1 << 30,
    host_bytes=1 << 30,
    threads=1,
    certified=True,
)


def request(number=0, *, ttft=100.0, text=" 1234", expected=("1234",), prompt=1000, **more):
    row = {
        "position": number,
        "item_id": str(number),
        "request_id": str(number),
        "due_s": float(number),
        "lag_ms": 0.0,
        "latency_ms": ttft + 50.0,
        "ttft_ms": ttft,
        "gaps_ms": (10.0, 20.0),
        "prompt_tokens": prompt,
        "error": more.pop("error", None),
    }
    tokens = dict.fromkeys(
        ("exact_tokens", "reused_tokens", "continued_tokens", "recomputed_tokens"), 0
    )
    return Request(row=LoadRow(**row), text=text, expected=expected, **(tokens | more))


def cell(*requests, arm="semblend", workload="rag", rate=1.0, seed=0, **more):
    held = {"busy_seconds": 1.0, "cpu_seconds": 2.0, "memory_bytes": 1 << 20}
    machine = {"cores": 2, "load_before": 0.5, "load_after": 0.5}
    name = CellName(workload=workload, arm=arm, seed=seed, rate=rate)
    return Cell(name=name, requests=requests, machine=machine, **(held | more))


# The rates


@pytest.mark.parametrize("seed", range(40))
def test_a_sweep_ends_where_a_server_of_known_capacity_breaks(seed):
    source = random.Random(seed)
    capacity = math.exp(source.uniform(math.log(0.05), math.log(50)))
    rule = SweepRule(
        start=source.choice([0.1, 1.0, 5.0]),
        factor=source.uniform(1.2, 3.0),
        most=30,
        refine=source.randrange(4),
    )
    asked = []

    def passes(rate):
        asked.append(rate)
        return rate <= capacity

    tried = sweep(rule, passes)
    found = highest(tried)
    assert len(asked) == len(set(asked)) == len(tried)
    assert list(tried) == sorted(tried)
    assert found.rate <= capacity < found.saturated_at
    width = rule.factor ** (0.5**rule.refine)
    assert found.saturated_at / found.rate <= width * 1.01


def test_a_sweep_stops_at_the_first_rate_that_fails():
    rule = SweepRule(start=1.0, factor=2.0, most=10, refine=0)
    assert sweep(rule, lambda rate: rate < 3.0) == {1.0: True, 2.0: True, 4.0: False}


def test_a_server_that_never_breaks_gives_a_lower_bound_only():
    rule = SweepRule(start=1.0, factor=2.0, most=3, refine=2)
    found = highest(sweep(rule, lambda rate: True))
    assert (found.rate, found.saturated_at) == (4.0, None)


def test_a_server_that_holds_no_rate_has_none():
    found = highest(sweep(SweepRule(start=1.0, factor=2.0, most=3, refine=2), lambda rate: False))
    assert (found.rate, found.saturated_at) == (0.0, 0.25)


def test_a_pass_above_a_failure_does_not_count():
    assert highest({1.0: True, 2.0: False, 4.0: True}).rate == 1.0


@pytest.mark.parametrize(
    "wrong", [{"start": 0.0}, {"start": 1.0, "factor": 1.0}, {"start": 1.0, "most": 0}]
)
def test_a_sweep_that_could_not_end_is_refused(wrong):
    with pytest.raises(ValueError, match="expected start"):
        SweepRule(**wrong)


def test_a_failed_request_fails_its_rate():
    good = [request(n) for n in range(20)]
    assert figures.passes(cell(*good), limit_ms=2000)
    assert not figures.passes(cell(*good, request(20, error="HTTP 500")), limit_ms=2000)
    assert not figures.passes(cell(*good, request(20, ttft=200_000.0)), limit_ms=2000)
    assert not figures.passes(cell(), limit_ms=2000)


# Statistics


@pytest.mark.parametrize("seed", range(10))
def test_percentiles_are_those_of_numpy(seed):
    source = random.Random(seed)
    values = [source.expovariate(0.01) for _ in range(source.randrange(1, 300))]
    found = figures.times_of(values)
    expected = np.percentile(values, [50, 90, 99])
    assert (found.p50, found.p90, found.p99) == pytest.approx(tuple(expected))


def test_shares_of_tokens_by_source_add_up_to_all_prompts():
    source = random.Random(3)
    requests = [
        request(n, prompt=1000, exact_tokens=source.randrange(300), reused_tokens=500)
        for n in range(30)
    ]
    shares = figures.shares_of(requests)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["reused"] == pytest.approx(0.5)
    exact = sum(each.exact_tokens for each in requests)
    assert shares["exact"] == pytest.approx(exact / 30_000)


def test_seconds_are_scaled_to_a_thousand_requests():
    found = figures.figures_of(cell(*[request(n) for n in range(50)], cpu_seconds=5.0))
    assert found.cpu_seconds_per_1000 == pytest.approx(100.0)


def test_an_answer_counts_as_right_only_if_it_states_the_value():
    assert request(text="it is 1234.").right is True
    assert request(text="it is 4321.").right is False
    assert request(expected=()).right is None
    mixed = cell(request(0), request(1, text="no"), request(2, expected=()))
    assert figures.figures_of(mixed).right == 0.5


def test_windows_compare_each_request_with_itself_cold():
    # Cold takes 10 times as long for long prompts; unpaired medians would say something else.
    source = random.Random(1)
    cold = [request(n, ttft=source.choice([100.0, 1000.0])) for n in range(200)]
    warm = [
        replace(each, row=replace(each.row, ttft_ms=each.row.ttft_ms / 4), reused_tokens=750)
        for each in cold
    ]
    series = figures.windows(cell(*warm), cell(*cold))
    assert [window.first for window in series] == [0, 50, 100, 150]
    assert [window.speed_up for window in series] == pytest.approx([4.0] * 4)
    assert [window.hit_share for window in series] == pytest.approx([0.75] * 4)
    assert figures.decay(series) == pytest.approx(1.0)


def test_a_gain_that_fades_is_seen_as_decay():
    speeds = [1.0, 1.0, 4.0, 4.0, 3.0, 2.0, 1.0, 1.0]
    series = [
        figures.WindowFigures(first=50 * n, hit_share=0.5, speed_up=speed)
        for n, speed in enumerate(speeds)
    ]
    assert figures.decay(series) == pytest.approx(0.25)
    assert figures.decay(series[:3]) is None


# The workloads


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_the_same_for_a_seed_and_a_longer_run_starts_with_a_shorter(name):
    make = WORKLOADS[name]
    assert make(1, 12, 1024) == make(1, 30, 1024)[:12]
    assert make(1, 12, 1024) != make(2, 12, 1024)
    names = [ask.name for ask in make(1, 30, 1024)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != "agents"])
def test_every_prompt_states_the_answer_it_asks_for(name):
    for ask in WORKLOADS[name](0, 30, 1024):
        assert all(re.search(rf"\b{value}\b", ask.text) for value in ask.answers)
        assert ask.answers


def test_novel_queries_share_no_document_and_the_mix_shares_three_in_ten():
    novel = [p.rank for ask in WORKLOADS["novel"](0, 50, 1024) for p in ask.passages]
    assert len(set(novel)) == len(novel)
    mixed = WORKLOADS["mixed"](0, 500, 1024)
    assert sum(ask.shared for ask in mixed) / len(mixed) == pytest.approx(0.3, abs=0.07)
    for ask in mixed:
        assert all((p.rank < NEVER_SEEN) == ask.shared for p in ask.passages)


def test_popularity_follows_zipf():
    source = random.Random(0)
    first = Counter(zipf_draw(source, 40, 1)[0] for _ in range(20_000))
    total = sum(1 / (rank + 1) for rank in range(40))
    for rank in (0, 1, 4, 19):
        assert first[rank] / 20_000 == pytest.approx(1 / (rank + 1) / total, abs=0.01)
    drawn = zipf_draw(source, 5, 5)
    assert sorted(drawn) == [0, 1, 2, 3, 4]


def test_an_edit_changes_one_fact_and_asks_for_it():
    seen = {}
    for ask in WORKLOADS["edited"](0, 60, 1024):
        (passage,) = ask.passages
        words = passage.text.split()
        before = seen.get(passage.rank)
        if before is not None:
            assert sum(a != b for a, b in zip(before, words, strict=True)) <= 1
        seen[passage.rank] = words


# Reordering


@pytest.mark.parametrize("name", WORKLOADS)
def test_reordering_changes_the_order_of_documents_and_nothing_else(name):
    asks = WORKLOADS[name](0, 40, 1024)
    for ask in asks:
        moved = ask.in_canonical_order()
        assert Counter(moved.passages) == Counter(ask.passages)
        assert replace(moved, passages=ask.passages) == ask
        assert [p.rank for p in moved.passages] == sorted(p.rank for p in ask.passages)
        shuffled = list(ask.passages)
        random.Random(0).shuffle(shuffled)
        assert replace(ask, passages=tuple(shuffled)).in_canonical_order() == moved


def test_reordered_prompts_share_longer_prefixes():
    def shared(items):
        seen, total = [], 0
        for item in items:
            text = item.recipient_prompt
            total += max((_common(text, other) for other in seen), default=0)
            seen.append(text)
        return total

    asks = WORKLOADS["rag"](0, 40, 1024)
    assert shared(items_of(asks, reorder=True)) > 1.3 * shared(items_of(asks, reorder=False))


def _common(one, other):
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))


# The arms


def test_every_arm_gets_the_same_memory_and_only_the_first_has_no_prefix_cache():
    memory = Memory(cache=7 << 20, host=5 << 20)
    for arm in ARMS:
        options = engine_options(arm, Machine.CPU, memory, certified=True)
        assert options["kv_cache_memory_bytes"] == memory.cache
        assert options["enable_prefix_caching"] == (arm.caching is not Caching.NONE)
        extra = options.get("kv_transfer_config", {}).get("kv_connector_extra_config", {})
        if arm.caching in (Caching.OURS, Caching.OFFLOADING):
            assert memory.host in extra.values()


def test_ours_runs_under_its_certificate_and_controls_do_not():
    def mode(name, certified):
        options = engine_options(
            BY_NAME[name], Machine.CPU, Memory(cache=1, host=1), certified=certified
        )
        return options["kv_transfer_config"]["kv_connector_extra_config"]

    assert mode("semblend", True)["mode"] == "segmented"
    assert "recompute_policy" not in mode("semblend", True)
    assert mode("semblend", False)["mode"] == "segmented_experimental"
    assert mode("full_reuse", True)["recompute_policy"] == "none"


# A run that was stopped

PATIENT = replace(SETTINGS, limit_ms=1e9)
"""However slow the machine is, every rate passes."""


class Instant:
    """Answers every prompt at once and counts them."""

    def __init__(self, after=math.inf):
        self.busy_seconds = self.decode_seconds = 0.0
        self.prompts = []
        self.served = 0
        self.emptied = 0
        self.after = after

    async def complete(self, prompt):
        self.served += 1
        if self.served > self.after:
            raise KeyboardInterrupt
        await asyncio.sleep(0)
        self.busy_seconds += 0.01
        self.decode_seconds += 0.0025
        self.prompts.append(prompt.text)
        return Reply(
            request_id=prompt.request_id,
            text=" 1234",
            ttft_ms=1.0,
            latency_ms=2.0,
            gaps_ms=(1.0,),
            prompt_tokens=100,
            output_tokens=2,
            exact_tokens=10,
            reused_tokens=20,
            outcome="declined",
            strip={"reason": "not_worth_it"},
        )

    async def close(self):
        pass

    async def empty(self):
        self.emptied += 1

    async def settle(self):
        pass


def measure(client, folder, until=math.inf, task="novel:0", settings=PATIENT):
    with asyncio.Runner() as runner:
        arm = BY_NAME["semblend"]
        Measuring(client, arm, settings, folder, until).task(task_of(task), runner)


def run_of(folder):
    arm = BY_NAME["semblend"]
    return Run(
        folder=folder, settings=PATIENT, arms=[arm], workloads=["novel"], python="python"
    ), arm


def test_a_stopped_run_measures_only_what_is_missing(tmp_path):
    stopped = Instant(after=SETTINGS.requests + 2)
    with pytest.raises(KeyboardInterrupt):
        measure(stopped, tmp_path)
    (kept,) = all_cells(tmp_path)
    run, arm = run_of(tmp_path)
    task = Task(workload="novel", seed=0)
    assert not is_done(run, arm, task)

    again = Instant()
    measure(again, tmp_path)
    assert again.served == SETTINGS.requests * (SETTINGS.rate_most - 1)
    assert again.emptied == SETTINGS.rate_most - 1
    cells = all_cells(tmp_path)
    assert [each.name.rate for each in Groups(cells).swept("semblend", "novel")] == [50, 100, 200]
    assert kept in cells
    assert is_done(run, arm, task)

    measure(third := Instant(), tmp_path)
    assert third.served == 0


def test_no_cell_starts_after_the_end_and_half_a_cell_is_not_kept(tmp_path):
    with pytest.raises(OutOfTimeError):
        measure(client := Instant(), tmp_path, until=0.0)
    assert client.served == 0
    with pytest.raises(KeyboardInterrupt):
        measure(Instant(after=3), tmp_path)
    assert all_cells(tmp_path) == []


def test_requests_that_warm_the_engine_up_come_first_and_are_in_no_figure(tmp_path):
    settings = replace(PATIENT, warm_up=4, rate_most=1)
    measure(client := Instant(), tmp_path, settings=settings)
    asks = WORKLOADS["novel"](0, 4 + settings.requests, settings.tokens)
    assert client.prompts[:4] == [ask.text for ask in asks[:4]]
    assert sorted(client.prompts[4:]) == sorted(ask.text for ask in asks[4:])
    (measured,) = all_cells(tmp_path)
    assert len(measured.requests) == settings.requests
    assert measured.busy_seconds == pytest.approx(0.01 * settings.requests)


def test_a_cell_says_what_became_of_reuse_and_how_much_was_decoding(tmp_path):
    measure(Instant(), tmp_path, settings=replace(PATIENT, rate_most=1))
    rows = rows_of(all_cells(tmp_path))
    case = "novel, semblend, 50/s, seed 0"
    assert rows[case, "requests declined: not_worth_it"].value == PATIENT.requests
    assert rows[case, "time in steps that only decode"].value == pytest.approx(0.25)


def test_a_cell_reads_as_it_was_written(tmp_path):
    written = cell(request(0, reused_tokens=7), request(1, error="HTTP 500"))
    written.write(tmp_path)
    assert all_cells(tmp_path) == [written]


def test_a_run_goes_on_only_with_the_same_settings(tmp_path):
    SETTINGS.begin(tmp_path, resume=False)
    assert Settings.read(tmp_path) == SETTINGS
    SETTINGS.begin(tmp_path, resume=True)
    with pytest.raises(UsageError, match="--resume"):
        SETTINGS.begin(tmp_path, resume=False)
    with pytest.raises(UsageError, match="requests was 6, is 7"):
        replace(SETTINGS, requests=7).begin(tmp_path, resume=True)


def test_all_arms_measure_the_headline_before_any_goes_on():
    lists = list(passes_of(["rag", "edited", "novel"], 2, series=True))
    assert [[text_of(task) for task in tasks] for tasks in lists] == [
        ["rag:0", "novel:0"],
        ["edited:0", "over_time:0:series"],
        ["rag:1", "edited:1", "novel:1"],
    ]
    assert all(task_of(text_of(task)) == task for tasks in lists for task in tasks)
    assert [len(tasks) for tasks in passes_of(["rag"], 1, series=False)] == [1]


# Rows, and what is said against us


def sweep_cells(arm, capacity, *, workload="rag", slow=1.0):
    return [
        cell(
            *[request(n, ttft=(100.0 if rate <= capacity else 9000.0) * slow) for n in range(20)],
            arm=arm,
            rate=rate,
            workload=workload,
        )
        for rate in (1.0, 2.0, 4.0, 8.0)
    ]


def rows_of(cells):
    return {(row.case, row.metric): row for row in report_of(cells, SETTINGS).rows}


def test_the_target_on_retrieval_is_three_times_the_prefix_cache():
    metric = ("rag, semblend", "highest rate over prefix_cache's")
    met = rows_of(sweep_cells("semblend", 4.0) + sweep_cells("prefix_cache", 1.0))[metric]
    assert (met.value, met.target, met.ok) == (4.0, 3.0, True)
    missed = rows_of(sweep_cells("semblend", 4.0) + sweep_cells("prefix_cache", 2.0))[metric]
    assert (missed.value, missed.ok) == (2.0, False)


def test_novel_queries_may_cost_one_percent():
    def novel(slow):
        ours = sweep_cells("semblend", 4.0, workload="novel", slow=slow)
        cells = ours + sweep_cells("prefix_cache", 4.0, workload="novel")
        return rows_of(cells)["novel, semblend, 1/s", "median TTFT over prefix_cache's"]

    assert novel(1.005).ok is True
    assert novel(1.02).ok is False


def test_a_comparison_that_is_lost_is_on_the_page(tmp_path):
    ours = sweep_cells("semblend", 2.0, slow=1.5)
    theirs = sweep_cells("prefix_cache", 4.0)
    settings = SETTINGS
    report = report_of(ours + theirs, settings)
    said = findings(Groups(ours + theirs), settings, report)
    assert any("holds 4 requests/s, ours 2" in line for line in said)
    assert any("lower TTFT, p99" in line for line in said)
    assert any(line.startswith("Target missed") for line in said)
    assert not findings(Groups(ours), settings, report_of(ours, settings))

    file = tmp_path / "evidence.md"
    before, after = page.marks(Machine.CPU)
    file.write_text(f"# Head\n\n{before}\nold\n{after}\n\n# Tail\n")
    page.write_page(file, ours + theirs, settings, report, {"first_k": "why not"}, NOTHING)
    text = file.read_text()
    assert text.startswith("# Head\n")
    assert text.endswith("\n\n# Tail\n")
    assert "\nold\n" not in text
    assert "why not" in text
    assert all(f"- {line}" in text for line in said)
    assert "A dry run, not evidence" in text


def test_a_run_is_called_dry_unless_it_is_long_enough_and_the_machine_was_quiet():
    enough = replace(SETTINGS, seeds=3)
    good = cell(*[request(n) for n in range(500)])
    assert page.doubts([good], enough) == []
    assert page.doubts([cell(*good.requests[:499])], enough)
    assert page.doubts([good], SETTINGS)
    loud = replace(good, machine={**good.machine, "load_before": 9.0})
    assert page.doubts([loud], enough)


def test_times_of_a_busy_machine_are_not_shown():
    def shown(load):
        cells = [
            replace(each, machine={**each.machine, "load_before": load})
            for each in sweep_cells("semblend", 2.0) + sweep_cells("prefix_cache", 4.0)
        ]
        report = report_of(cells, SETTINGS)
        return page.section(cells, SETTINGS, report, {}, NOTHING, page.Path())

    assert "TTFT p50" in shown(1.0)
    assert "Highest rate" in shown(1.0)
    loud = shown(20.0)
    assert "TTFT p50" not in loud
    assert "Highest rate" not in loud
    assert page.UNTIMED in loud
    assert "right | as cold" in loud


def test_the_command_on_the_page_measures_the_same():
    from benchmarks.evidence.__main__ import parser, settings_of

    cells = sweep_cells("semblend", 2.0) + sweep_cells("no_cache", 2.0)
    text = page.command_of(Groups(cells), replace(SETTINGS, rate_most=5, requests=77))
    words = text.replace("\\\n", " ").split()
    assert words[:3] == ["python", "-m", "benchmarks.evidence"]
    chosen = parser().parse_args(words[3:])
    assert settings_of(chosen) == replace(SETTINGS, rate_most=5, requests=77)
    assert (chosen.arms, chosen.workloads) == (["no_cache", "semblend"], ["rag"])


def test_the_report_has_the_format_of_every_benchmark():
    series = cell(*[request(n) for n in range(50)], workload="over_time", rate=ONE_BY_ONE)
    data = json.loads(report_of([*sweep_cells("semblend", 2.0), series], SETTINGS).to_json())
    assert set(data) == {"benchmark", "command", "rows"}
    for row in data["rows"]:
        assert set(row) == {"case", "metric", "value", "unit", "target", "ok"}
        assert math.isfinite(row["value"])


def test_pictures_are_drawn_for_what_was_measured(tmp_path):
    cells = sweep_cells("semblend", 4.0) + sweep_cells("prefix_cache", 1.0)
    rates, values = curve(sweep_cells("semblend", 4.0), lambda each: each.ttft.p99)
    assert (rates, values) == ([1.0, 2.0, 4.0, 8.0], [100.0, 100.0, 100.0, 9000.0])
    first = draw(cells, SETTINGS, tmp_path / "one")
    assert first.series is None
    for name in ("ttft", "gaps", "rates"):
        assert "SemBlend, certified policy" in getattr(first, name).read_text()
    long = [
        cell(*[request(n) for n in range(100)], arm=arm, workload="over_time", rate=ONE_BY_ONE)
        for arm in ("semblend", "no_cache")
    ]
    assert draw(long, SETTINGS, tmp_path / "two").series.exists()
    assert draw([], SETTINGS, tmp_path / "three") == NOTHING
