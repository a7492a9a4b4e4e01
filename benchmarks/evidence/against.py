"""What a run's figures say against SemBlend: every comparison it loses."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.evidence.arms import ARMS
from benchmarks.evidence.figures import figures_of, highest_rate
from benchmarks.evidence.groups import COLD, OURS, Groups
from benchmarks.evidence.settings import Settings
from benchmarks.evidence.table import seconds_per_1000
from semblend.bench.benchmark_report import BenchmarkReport


def findings(groups: Groups, settings: Settings, report: BenchmarkReport) -> list[str]:
    """One sentence each; missed targets first."""
    missed = [
        f"Target missed: {row.case}: {row.metric} is {row.value:.3g} {row.unit}, "
        f"the target is {row.target:g}."
        for row in report.failed
    ]
    return missed + [
        line for workload in groups.workloads for line in _lost(groups, settings, workload)
    ]


def _lost(groups: Groups, settings: Settings, workload: str) -> Iterator[str]:
    """Where another arm does better on a workload."""
    ours = highest_rate(groups.swept(OURS, workload), limit_ms=settings.limit_ms)
    for arm in ARMS:
        if arm.name == OURS:
            continue
        theirs = highest_rate(groups.swept(arm.name, workload), limit_ms=settings.limit_ms)
        if ours is not None and theirs is not None and theirs.median > ours.median:
            yield (
                f"{workload}: {arm.title} holds {theirs.median:.3g} requests/s, "
                f"ours {ours.median:.3g}."
            )
        pair = groups.lowest(OURS, workload, arm.name)
        if pair is None:
            continue
        mine, other = (figures_of(cell) for cell in pair)
        at = f"{workload} at {mine.rate:g}/s"
        if mine.ttft and other.ttft:
            for share in ("p50", "p99"):
                own, his = getattr(mine.ttft, share), getattr(other.ttft, share)
                if his < own:
                    yield (
                        f"{at}: {arm.title} has the lower TTFT, {share}: "
                        f"{his:.0f} ms against {own:.0f}."
                    )
        if mine.gap and other.gap and other.gap.p99 < mine.gap.p99:
            yield (
                f"{at}: {arm.title} has the shorter gaps between tokens, p99: "
                f"{other.gap.p99:.0f} ms against {mine.gap.p99:.0f}."
            )
        (own, unit), (his, _) = (seconds_per_1000(each, settings.machine) for each in (mine, other))
        if his < own:
            yield f"{at}: {arm.title} needs {his:.0f} {unit} per 1,000 requests, ours {own:.0f}."
        if mine.right is not None and other.right is not None and other.right > mine.right:
            yield (f"{at}: {arm.title} answers {other.right:.1%} right, ours {mine.right:.1%}.")
        if arm.name == COLD and mine.memory_bytes > other.memory_bytes:
            more = (mine.memory_bytes - other.memory_bytes) / (1 << 20)
            yield f"{at}: our process holds {more:.0f} MiB more than one that caches nothing."
