"""The plots: times against offered rate for every workload, highest rates, and the series."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.evidence.arms import ARMS, Arm
from benchmarks.evidence.cells import Cell
from benchmarks.evidence.figures import CellFigures, figures_of, highest_rate, windows
from benchmarks.evidence.groups import COLD, Groups
from benchmarks.evidence.settings import Settings
from benchmarks.evidence.workloads import TITLES
from sembench import statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """The files that were drawn; None where nothing was measured."""

    ttft: Path | None
    gaps: Path | None
    rates: Path | None
    series: Path | None


NOTHING = Pictures(ttft=None, gaps=None, rates=None, series=None)


def curve(
    cells: Sequence[Cell], value: Callable[[CellFigures], float | None]
) -> tuple[list[float], list[float]]:
    """Rates, and the median over seeds of a figure at each."""
    points: dict[float, list[float]] = {}
    for cell in cells:
        found = value(figures_of(cell))
        if found is not None:
            points.setdefault(cell.name.rate, []).append(found)
    rates = sorted(points)
    return rates, [statistics.median(points[rate]) for rate in rates]


def draw(cells: list[Cell], settings: Settings, folder: Path) -> Pictures:
    """Draw what there are cells for, as SVG files named after the machine."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "evidence", "font.size": 8})
    folder.mkdir(parents=True, exist_ok=True)
    groups = Groups(cells)
    drawn: dict[str, Path | None] = {}

    def save(name: str, figure: Any) -> None:
        if figure is None:
            drawn[name] = None
            return
        path = folder / f"evidence-{settings.machine}-{name}.svg"
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
        drawn[name] = path

    save("ttft", _curves(plt, groups, settings, "TTFT, p99 (ms)", _ttft, settings.limit_ms))
    save("gaps", _curves(plt, groups, settings, "gap between tokens, p99 (ms)", _gap, None))
    save("rates", _rates(plt, groups, settings))
    save("series", _series(plt, groups))
    return Pictures(**drawn)


def _ttft(figures: CellFigures) -> float | None:
    return figures.ttft.p99 if figures.ttft else None


def _gap(figures: CellFigures) -> float | None:
    return figures.gap.p99 if figures.gap else None


def _style(arm: Arm) -> dict[str, Any]:
    number = [each.name for each in ARMS].index(arm.name)
    return {"color": f"C{number}", "linestyle": ":" if arm.control else "-", "marker": "o"}


def _curves(
    plt: Any,
    groups: Groups,
    settings: Settings,
    label: str,
    value: Callable[[CellFigures], float | None],
    limit: float | None,
) -> Any:
    if not groups.workloads:
        return None
    across = min(3, len(groups.workloads))
    down = -(-len(groups.workloads) // across)
    figure, grid = plt.subplots(down, across, figsize=(5 * across, 3.4 * down), squeeze=False)
    for axes in grid.flat[len(groups.workloads) :]:
        axes.set_visible(False)
    for axes, workload in zip(grid.flat, groups.workloads, strict=False):
        for arm in ARMS:
            rates, values = curve(groups.swept(arm.name, workload), value)
            if rates:
                axes.plot(rates, values, label=arm.title, markersize=3, **_style(arm))
        if limit is not None:
            axes.axhline(limit, color="k", linewidth=0.6, linestyle="--")
        axes.set(xscale="log", yscale="log", xlabel="offered requests/s", ylabel=label)
        axes.set_title(TITLES[workload], fontsize=8)
    grid.flat[0].legend(fontsize=6)
    return figure


def _rates(plt: Any, groups: Groups, settings: Settings) -> Any:
    """One picture for the README: the highest rate that holds the limit, per arm."""
    if not groups.workloads:
        return None
    figure, axes = plt.subplots(figsize=(9, 3.2))
    arms = [arm for arm in ARMS if not arm.control]
    width = 0.8 / len(arms)
    for number, arm in enumerate(arms):
        found = [
            highest_rate(groups.swept(arm.name, workload), limit_ms=settings.limit_ms)
            for workload in groups.workloads
        ]
        places = [place + number * width for place, each in enumerate(found) if each]
        heights = [each.median for each in found if each]
        if heights:
            colour = _style(arm)["color"]
            axes.bar(places, heights, width, label=arm.title, color=colour)
    middle = [place + 0.4 - width / 2 for place in range(len(groups.workloads))]
    axes.set_xticks(middle, groups.workloads)
    axes.set_ylabel(f"highest requests/s\nwith p99 TTFT at most {settings.limit_ms / 1000:g} s")
    axes.legend(fontsize=7)
    return figure


def _series(plt: Any, groups: Groups) -> Any:
    cold = groups.series(COLD)
    known = [(arm, cell) for arm in ARMS if (cell := groups.series(arm.name)) is not None]
    if not known:
        return None
    figure, (hits, speeds) = plt.subplots(1, 2, figsize=(10, 3.4))
    for arm, cell in known:
        series = windows(cell, cold)
        at = [window.first for window in series]
        hits.plot(at, [window.hit_share for window in series], label=arm.title, **_style(arm))
        if arm.name != COLD and cold is not None:
            ratios = [window.speed_up for window in series]
            speeds.plot(at, ratios, label=arm.title, **_style(arm))
    hits.set(xlabel="request", ylabel="tokens not computed", ylim=(0, 1))
    speeds.set(xlabel="request", ylabel="speed-up over cold")
    speeds.axhline(1.0, color="k", linewidth=0.6, linestyle="--")
    hits.legend(fontsize=6)
    return figure
