"""Writes a run into docs/evidence.md: its own section, between two marks, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.evidence.against import findings
from benchmarks.evidence.arms import ARMS, Arm, Machine, note, why_not
from benchmarks.evidence.cells import Cell
from benchmarks.evidence.figures import (
    SOURCES,
    Times,
    answers_as,
    decay,
    figures_of,
    highest_rate,
    windows,
)
from benchmarks.evidence.groups import COLD, Groups
from benchmarks.evidence.plots import Pictures
from benchmarks.evidence.settings import Settings
from benchmarks.evidence.table import seconds_per_1000
from benchmarks.evidence.workloads import TITLES
from sembench.errors import UsageError
from semblend.bench.benchmark_report import BenchmarkReport

HEADINGS = {Machine.CPU: "On a CPU", Machine.GPU: "On a GPU"}
LEAST_REQUESTS, LEAST_SEEDS = 500, 3
LINE = 100
UNTIMED = "Nothing can be said about times and rates: the machine was busy."


def marks(machine: Machine) -> tuple[str, str]:
    """The lines around a machine's section."""
    return f"<!-- evidence {machine} -->", f"<!-- end of evidence {machine} -->"


def write_page(
    page: Path,
    cells: Sequence[Cell],
    settings: Settings,
    report: BenchmarkReport,
    reasons: Mapping[str, str],
    pictures: Pictures,
) -> None:
    """Replace the machine's section of `page`.

    Raises
    ------
    UsageError
        If the page has no marks for the machine.
    """
    before, after = marks(settings.machine)
    text = page.read_text(encoding="utf-8")
    if text.count(before) != 1 or text.count(after) != 1:
        raise UsageError(f"--page: {page} needs one line {before} and one line {after}")
    head, _, rest = text.partition(before)
    tail = rest.partition(after)[2]
    body = section(cells, settings, report, reasons, pictures, page.parent)
    page.write_text(f"{head}{before}\n{body}\n{after}{tail}", encoding="utf-8")


def section(
    cells: Sequence[Cell],
    settings: Settings,
    report: BenchmarkReport,
    reasons: Mapping[str, str],
    pictures: Pictures,
    folder: Path,
) -> str:
    """A machine's section as Markdown."""
    groups, timed = Groups(cells), not busy(cells)
    parts = [f"## {HEADINGS[settings.machine]}", _stated(cells, settings)]
    parts += [f"```bash\n{command_of(groups, settings)}\n```"]
    if timed:
        parts += _picture("99th percentile of TTFT against offered rate", pictures.ttft, folder)
        parts += _picture("99th percentile of gaps against offered rate", pictures.gaps, folder)
        parts += ["### Highest rate", _rates(groups, settings)]
        parts += _picture("Highest rate by arm and workload", pictures.rates, folder)
    for workload in groups.workloads:
        title = TITLES[workload]
        parts.append(f"### {title[0].upper()}{title[1:]}")
        parts.append(_workload(groups, settings, workload, timed=timed))
    if timed:
        parts += _over_time(groups, pictures, folder)
    parts += ["### Arms", _arms(groups, settings, reasons)]
    against = findings(groups, settings, report) if timed else [UNTIMED]
    parts += ["### What the figures say against us", _list(against or ["Nothing measured here."])]
    return "\n\n".join(parts)


def busy(cells: Sequence[Cell]) -> str:
    """Why times of this run mean nothing; empty if the machine had nothing else to do."""
    load = max((float(cell.machine["load_before"]) for cell in cells), default=0.0)
    cores = max((int(cell.machine["cores"]) for cell in cells), default=1)
    return f"other programs ran: a load of {load:.0f} on {cores} cores" if load > cores + 1 else ""


def command_of(groups: Groups, settings: Settings) -> str:
    """The command that measures this again."""
    arms = [arm.name for arm in ARMS if any(cell.name.arm == arm.name for cell in groups.cells)]
    flags = {
        "--machine": settings.machine,
        "--model": settings.model if settings.certified else "FOLDER",
        "--output": f"results/evidence-{settings.machine}",
        "--requests": settings.requests,
        "--warm-up": settings.warm_up,
        "--seeds": settings.seeds,
        "--tokens": settings.tokens,
        "--max-tokens": settings.max_tokens,
        "--rate": f"{settings.rate_start:g}",
        "--rate-factor": f"{settings.rate_factor:g}",
        "--rate-most": settings.rate_most,
        "--rate-refine": settings.rate_refine,
        "--over-time": settings.over_time,
        "--threads": settings.threads,
        "--workloads": " ".join(groups.workloads),
        "--arms": " ".join(arms),
    }
    words = [f"{name} {value}" for name, value in flags.items()]
    if not settings.certified:
        words.append("--uncertified --tokenizer FOLDER")
    lines = ["python -m benchmarks.evidence"]
    for word in words:
        if len(lines[-1]) + len(word) > LINE:
            lines.append("   ")
        lines[-1] += f" {word}"
    return " \\\n".join(lines)


def doubts(cells: Sequence[Cell], settings: Settings) -> list[str]:
    """Why figures of this run must not be quoted; empty if they may."""
    found = []
    fewest = min((len(cell.requests) for cell in cells), default=0)
    if fewest < LEAST_REQUESTS:
        found.append(f"{fewest} requests per rate instead of {LEAST_REQUESTS}")
    if settings.seeds < LEAST_SEEDS:
        found.append(f"{settings.seeds} seed(s) instead of {LEAST_SEEDS}")
    if other := busy(cells):
        found.append(f"{other}, so times are left out here")
    return found


def _stated(cells: Sequence[Cell], settings: Settings) -> str:
    machine = cells[0].machine if cells else {}
    wrong = doubts(cells, settings)
    warning = f"**A dry run, not evidence:** {'; '.join(wrong)}.\n\n" if wrong else ""
    before = f" after {settings.warm_up} that warm it up" if settings.warm_up else ""
    hardware = machine.get("gpu") or f"{machine.get('processor')}, {machine.get('cores')} cores"
    return (
        f"{warning}{hardware}; vLLM {machine.get('vllm')}, torch {machine.get('torch')}, Python "
        f"{machine.get('python')}; `{Path(settings.model).name}`; prompts of about "
        f"{settings.tokens} tokens, {settings.max_tokens} tokens decoded, {settings.requests} "
        f"requests per rate{before}, {settings.seeds} seed(s); "
        f"{settings.cache_bytes / (1 << 30):g} GiB of K/V cache for every arm "
        f"and {settings.host_bytes / (1 << 30):g} GiB of host memory for "
        f"those that use it."
    )


def _picture(title: str, path: Path | None, folder: Path) -> list[str]:
    return [] if path is None else [f"![{title}]({path.relative_to(folder)})"]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _rates(groups: Groups, settings: Settings) -> str:
    rows = []
    for arm in ARMS:
        row = [arm.title]
        for workload in groups.workloads:
            found = highest_rate(groups.swept(arm.name, workload), limit_ms=settings.limit_ms)
            if found is None:
                row.append("–")
                continue
            spread = f" ({found.low:.3g} to {found.high:.3g})" if found.seeds > 1 else ""
            row.append(f"{'≥ ' if found.open_ended else ''}{found.median:.3g}{spread}")
        if set(row[1:]) != {"–"}:
            rows.append(row)
    limit = f"Requests per second with p99 TTFT at most {settings.limit_ms / 1000:g} s."
    return f"{limit}\n\n{_table(['', *groups.workloads], rows)}"


def _workload(groups: Groups, settings: Settings, workload: str, *, timed: bool) -> str:
    """Every arm at the lowest rate that it and the arm without a cache have in common."""
    unit = "CPU-s" if settings.machine is Machine.CPU else "GPU-s"
    times = ["TTFT p50 / p90 / p99, ms", "gap p50 / p90 / p99, ms", f"{unit} per 1,000"]
    head = ["", "rate", *(times if timed else [])]
    head += ["tokens exact / continued / reused / computed, %", "right", "as cold", "MiB"]
    rows = []
    for arm in ARMS:
        found = groups.lowest(arm.name, workload, COLD) or groups.swept(arm.name, workload)[:1]
        if not found:
            continue
        figures = figures_of(found[0])
        same = answers_as(found[0], found[1]) if len(found) > 1 else None
        seconds = f"{seconds_per_1000(figures, settings.machine)[0]:,.0f}"
        took = [_times(figures.ttft), _times(figures.gap), seconds] if timed else []
        rows.append(
            [
                arm.title,
                f"{figures.rate:g}",
                *took,
                " / ".join(f"{figures.tokens[source] * 100:.0f}" for source in SOURCES),
                "–" if figures.right is None else f"{figures.right:.1%}",
                "–" if same is None else f"{same:.1%}",
                f"{figures.memory_bytes / (1 << 20):,.0f}",
            ]
        )
    return _table(head, rows)


def _times(times: Times | None) -> str:
    return "–" if times is None else f"{times.p50:,.0f} / {times.p90:,.0f} / {times.p99:,.0f}"


def _over_time(groups: Groups, pictures: Pictures, folder: Path) -> list[str]:
    if pictures.series is None:
        return []
    rows = []
    cold = groups.series(COLD)
    for arm in ARMS:
        cell = groups.series(arm.name)
        series = windows(cell, cold) if cell is not None else []
        if not series:
            continue
        kept = decay(series)
        first, last = series[0], series[-1]
        rows.append(
            [
                arm.title,
                f"{first.hit_share:.0%} → {last.hit_share:.0%}",
                "–" if first.speed_up is None else f"{first.speed_up:.2f}x → {last.speed_up:.2f}x",
                "–" if kept is None else f"{kept:.2f}",
            ]
        )
    head = ["", "tokens not computed, first and last 50", "speed-up", "last quarter over second"]
    body = [_table(head, rows)] if rows else []
    return ["### Over time", *_picture("Over time", pictures.series, folder), *body]


def _reason(arm: Arm, settings: Settings, reasons: Mapping[str, str]) -> str:
    return why_not(arm, settings.machine) or reasons.get(arm.name) or "not measured yet"


def _arms(groups: Groups, settings: Settings, reasons: Mapping[str, str]) -> str:
    rows = []
    for arm in ARMS:
        measured = groups.series(arm.name) is not None or any(
            groups.swept(arm.name, workload) for workload in groups.workloads
        )
        said = note(arm, settings.machine, certified=settings.certified)
        reason = "" if measured else _reason(arm, settings, reasons)
        rows.append([arm.title, "yes" if measured else "no", reason or said or "–"])
    return _table(["arm", "measured", ""], rows)
