"""The run as rows of a benchmark: figures, targets, and whether they were met."""

from __future__ import annotations

from benchmarks.evidence.arms import ARMS, Machine
from benchmarks.evidence.cells import Cell
from benchmarks.evidence.figures import (
    CellFigures,
    HighestRate,
    answers_as,
    decay,
    figures_of,
    highest_rate,
    windows,
)
from benchmarks.evidence.groups import COLD, OURS, PREFIX, Groups
from benchmarks.evidence.settings import Settings
from semblend.bench.benchmark_report import BenchmarkReport

RAG_OVER = {PREFIX: 3.0, "offloading": 2.5}
"""How many times their highest rate ours must reach on retrieval."""
NOVEL_PERCENT = 1.0
ANSWERS_LOST = 0.01
DECAY = 0.9
"""Speed-up late in a series over that earlier in it, at least: windows of 50 scatter by some
percent."""
OFFLOADING = "offloading"


def report_of(cells: list[Cell], settings: Settings) -> BenchmarkReport:
    """All rows that the measured cells allow."""
    report, groups = BenchmarkReport("evidence"), Groups(cells)
    for workload in groups.workloads:
        rates: dict[str, HighestRate] = {}
        for arm in ARMS:
            swept = groups.swept(arm.name, workload)
            for cell in swept:
                _add_cell(report, cell, settings.machine)
            found = highest_rate(swept, limit_ms=settings.limit_ms)
            if found is not None:
                rates[arm.name] = found
                case = f"{workload}, {arm.name}"
                metric = f"highest rate with p99 TTFT at most {settings.limit_ms:g} ms"
                report.add(case, metric, found.median, "requests/s")
        _add_targets(report, workload, rates)
        _add_answers(report, groups, workload)
    _add_novel(report, groups)
    _add_series(report, groups)
    return report


def _add_cell(report: BenchmarkReport, cell: Cell, machine: Machine) -> None:
    name, figures = cell.name, figures_of(cell)
    case = f"{name.workload}, {name.arm}, {name.rate:g}/s, seed {name.seed}"
    for what, times in (("TTFT", figures.ttft), ("gap between tokens", figures.gap)):
        if times is not None:
            for percent in ("p50", "p90", "p99"):
                report.add(case, f"{what}, {percent}", getattr(times, percent), "ms")
    report.add(case, "failed requests", figures.failed, "requests", at_most=0)
    report.add(case, "answered", figures.answered_per_second, "requests/s")
    value, unit = seconds_per_1000(figures, machine)
    report.add(case, "per 1,000 requests", value, unit)
    for source, share in figures.tokens.items():
        report.add(case, f"tokens {source}", share, "share")
    report.add(case, "tokens recomputed", figures.recomputed, "share")
    for outcome, count in sorted(figures.outcomes.items()):
        report.add(case, f"requests {outcome}", count, "requests")
    report.add(case, "time in steps that only decode", figures.decoding, "share")
    if figures.right is not None:
        report.add(case, "right answers", figures.right, "share")
    report.add(case, "resident memory", figures.memory_bytes / (1 << 20), "MiB")


def seconds_per_1000(figures: CellFigures, machine: Machine) -> tuple[float, str]:
    """What a thousand requests keep busy: the processor, or the card while the engine steps."""
    if machine is Machine.CPU:
        return figures.cpu_seconds_per_1000, "CPU-s"
    return figures.busy_seconds_per_1000, "GPU-s"


def _add_targets(report: BenchmarkReport, workload: str, rates: dict[str, HighestRate]) -> None:
    ours = rates.get(OURS)
    if ours is None:
        return
    for arm, at_least in ((PREFIX, 1.0), (OFFLOADING, None)):
        other = rates.get(arm)
        if other is None or other.median <= 0:
            continue
        target = RAG_OVER[arm] if workload == "rag" else at_least
        ratio = ours.median / other.median
        report.add(f"{workload}, {OURS}", f"highest rate over {arm}'s", ratio, "x", at_least=target)


def _add_answers(report: BenchmarkReport, groups: Groups, workload: str) -> None:
    for arm in ARMS:
        pair = groups.lowest(arm.name, workload, COLD) if arm.name != COLD else None
        if pair is None:
            continue
        cell, cold = pair
        case = f"{workload}, {arm.name}, {cell.name.rate:g}/s, seed {cell.name.seed}"
        same = answers_as(cell, cold)
        if same is not None:
            report.add(case, "answers word for word as cold", same, "share")
        right, before = figures_of(cell).right, figures_of(cold).right
        if right is not None and before is not None:
            limit = ANSWERS_LOST if arm.name == OURS else None
            report.add(case, "right answers lost", before - right, "share", at_most=limit)


def _add_novel(report: BenchmarkReport, groups: Groups) -> None:
    pair = groups.lowest(OURS, "novel", PREFIX)
    if pair is None:
        return
    ours, prefix = (figures_of(cell) for cell in pair)
    if ours.ttft is not None and prefix.ttft is not None:
        more = (ours.ttft.p50 / prefix.ttft.p50 - 1.0) * 100
        case = f"novel, {OURS}, {ours.rate:g}/s"
        report.add(case, f"median TTFT over {PREFIX}'s", more, "%", at_most=NOVEL_PERCENT)
    more = (ours.cpu_seconds_per_1000 / prefix.cpu_seconds_per_1000 - 1.0) * 100
    report.add(f"novel, {OURS}, {ours.rate:g}/s", f"CPU time over {PREFIX}'s", more, "%")


def _add_series(report: BenchmarkReport, groups: Groups) -> None:
    cold = groups.series(COLD)
    for arm in ARMS:
        cell = groups.series(arm.name)
        if cell is None:
            continue
        series = windows(cell, cold)
        for window in series:
            case = f"over time, {arm.name}, from request {window.first}"
            report.add(case, "tokens not computed", window.hit_share, "share")
            if window.speed_up is not None:
                report.add(case, "speed-up over cold", window.speed_up, "x")
        kept = decay(series)
        if kept is not None and arm.name != COLD:
            target = DECAY if arm.name == OURS else None
            case = f"over time, {arm.name}"
            report.add(case, "speed-up, last quarter over second", kept, "x", at_least=target)
