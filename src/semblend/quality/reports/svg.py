"""Small SVG charts: lines and points over two axes, without dependencies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLOURS = (
    "#3b6fd4",
    "#d9822b",
    "#2f9e6e",
    "#c2413b",
    "#7b52c7",
    "#8a6d3b",
    "#c05a9e",
    "#5f6b7a",
    "#9aa21b",
    "#1b9fb0",
    "#111111",
    "#f2a9a0",
)
WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 62, 220, 34, 46


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Named points, joined by a line if there are several."""

    name: str
    points: tuple[tuple[float, float], ...]
    intervals: tuple[tuple[float, float], ...] = ()
    """Lower and upper end for each point, drawn as whiskers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    log_y: bool = False
    line: float | None = None
    """Level of a dashed line: cold's, or a bound."""


def draw(chart: Chart) -> str:
    """Draw the chart as an `<svg>` element."""
    points = [point for series in chart.series for point in series.points]
    if not points:
        return ""
    xs = _scale([x for x, _ in points], LEFT, WIDTH - RIGHT, log=False)
    levels = [y for _, y in points] + [
        e for s in chart.series for pair in s.intervals for e in pair
    ]
    if chart.line is not None:
        levels.append(chart.line)
    ys = _scale(levels, HEIGHT - BOTTOM, TOP, log=chart.log_y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(chart.title)}" font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="18" font-size="14" font-weight="600">{escape(chart.title)}</text>',
    ]
    for value in xs.ticks:
        at = xs(value)
        parts.append(
            f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle" fill="#555">'
            f"{_label(value)}</text>"
        )
    for value in ys.ticks:
        at = ys(value)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e4e4e4"/>'
            f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end" fill="#555">'
            f"{_label(value)}</text>"
        )
    if chart.line is not None:
        at = ys(chart.line)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#333" '
            'stroke-dasharray="5 4"/>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">{escape(chart.x)}</text>'
        f'<text transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(chart.y)}</text>'
    )
    for number, series in enumerate(chart.series):
        parts.extend(_series(series, COLOURS[number % len(COLOURS)], number, xs, ys))
    parts.append("</svg>")
    return "\n".join(parts)


class _Scale:
    def __init__(self, low: float, high: float, start: float, end: float, *, log: bool) -> None:
        self._low, self._high, self._start, self._end, self._log = low, high, start, end, log
        if log:
            exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            self.ticks = [10.0**e for e in exponents if low <= 10.0**e <= high]
        else:
            step = _step(high - low)
            first = math.ceil(low / step - 1e-9)
            self.ticks = [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]

    def __call__(self, value: float) -> float:
        low, high = self._low, self._high
        if self._log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        return self._start + (value - low) / (high - low) * (self._end - self._start)


def _scale(values: Sequence[float], start: float, end: float, *, log: bool) -> _Scale:
    low, high = min(values), max(values)
    if log:
        positive = [value for value in values if value > 0] or [1e-12]
        low = max(min(positive), max(positive) * 1e-7)
        return _Scale(low / 1.5, max(positive) * 1.5, start, end, log=True)
    margin = (high - low) * 0.05 or 0.05
    return _Scale(low - margin, high + margin, start, end, log=False)


def _step(span: float) -> float:
    rough = span / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough)


def _series(series: Series, colour: str, number: int, xs: _Scale, ys: _Scale) -> list[str]:
    at = [(xs(x), ys(y)) for x, y in series.points]
    parts: list[str] = []
    if len(at) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        )
    for (x, _), (low, high) in zip(at, series.intervals, strict=False):
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{ys(low):.1f}" y2="{ys(high):.1f}" '
            f'stroke="{colour}" stroke-opacity="0.45"/>'
        )
    parts.extend(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{colour}"/>' for x, y in at)
    left, top = WIDTH - RIGHT + 16, TOP + 10 + 17 * number
    parts.append(
        f'<circle cx="{left}" cy="{top - 4}" r="4" fill="{colour}"/>'
        f'<text x="{left + 9}" y="{top}">{escape(series.name)}</text>'
    )
    return parts


def _label(value: float) -> str:
    return f"{value:.0e}" if value and abs(value) < 1e-3 else f"{value:.3g}"
