"""Charts as inline SVG: no scripts, no fonts, no requests; colours come from the page's CSS."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 16, 16, 46


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A mark of a scatter plot."""

    x: float
    y: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A named sample of a distribution plot."""

    name: str
    kind: str
    values: Sequence[float]


def scatter(points: Sequence[Point], *, x_label: str, y_label: str) -> str:
    """Both axes logarithmic with one range, and the line where both are equal."""
    positive = [point for point in points if point.x > 0 and point.y > 0]
    if not positive:
        return ""
    values = [value for point in positive for value in (point.x, point.y)]
    low, high = _decades(min(values), max(values))
    across, up = (
        _log_axis(low, high, _LEFT, WIDTH - _RIGHT),
        _log_axis(low, high, HEIGHT - _BOTTOM, _TOP),
    )
    parts = [_frame(x_label, y_label)]
    for tick in _log_ticks(low, high):
        parts += [_x_tick(across(tick), _short(tick)), _y_tick(up(tick), _short(tick))]
    parts.append(
        f'<line class="equal" x1="{across(low):.1f}" y1="{up(low):.1f}" '
        f'x2="{across(high):.1f}" y2="{up(high):.1f}"/>'
    )
    parts += [
        f'<circle class="dot {escape(point.kind)}" cx="{across(point.x):.1f}" '
        f'cy="{up(point.y):.1f}" r="4"><title>{escape(point.title)}</title></circle>'
        for point in positive
    ]
    return _svg(parts, f"{y_label} against {x_label}")


def distributions(series: Sequence[Series], *, x_label: str) -> str:
    """Empirical distribution functions over a logarithmic axis: no bins to choose."""
    samples = [(one, sorted(value for value in one.values if value > 0)) for one in series]
    values = [value for _, ordered in samples for value in ordered]
    if not values:
        return ""
    low, high = _decades(min(values), max(values))
    across = _log_axis(low, high, _LEFT, WIDTH - _RIGHT)

    def up(share: float) -> float:
        return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)

    parts = [_frame(x_label, "share of requests")]
    parts += [_x_tick(across(tick), _short(tick)) for tick in _log_ticks(low, high)]
    parts += [_y_tick(up(share), f"{share:.0%}") for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    for one, ordered in samples:
        if not ordered:
            continue
        steps = [f"M{across(low):.1f},{up(0):.1f}"]
        for index, value in enumerate(ordered):
            steps.append(f"H{across(value):.1f}V{up((index + 1) / len(ordered)):.1f}")
        steps.append(f"H{across(high):.1f}")
        parts.append(f'<path class="step {escape(one.kind)}" d="{"".join(steps)}"/>')
    return _svg(parts, f"distribution of {x_label}")


def strip(letters: str) -> str:
    """A prompt's blocks from left to right, runs of one letter drawn as one piece."""
    if not letters:
        return ""
    pieces: list[str] = []
    start = 0
    for end in range(1, len(letters) + 1):
        if end == len(letters) or letters[end] != letters[start]:
            kind = _STRIP_KINDS.get(letters[start], "nothing")
            pieces.append(
                f'<rect class="{kind}" x="{start}" y="0" width="{end - start}" height="1">'
                f"<title>blocks {start} to {end - 1}: {_STRIP_NAMES[kind]}</title></rect>"
            )
            start = end
    return (
        f'<svg class="strip" viewBox="0 0 {len(letters)} 1" preserveAspectRatio="none" '
        f'role="img" aria-label="{len(letters)} blocks">{"".join(pieces)}</svg>'
    )


def shares(parts: Sequence[tuple[str, float, str]]) -> str:
    """A bar of (kind, share, title) pieces from left to right; what is left stays empty."""
    pieces: list[str] = []
    start = 0.0
    for kind, share, title in parts:
        width = max(0.0, min(share, 1.0 - start))
        pieces.append(
            f'<rect class="{escape(kind)}" x="{start:.4f}" y="0" width="{width:.4f}" height="1">'
            f"<title>{escape(title)}</title></rect>"
        )
        start += width
    return (
        '<svg class="strip" viewBox="0 0 1 1" preserveAspectRatio="none" role="img" '
        f'aria-label="{start:.0%}">{"".join(pieces)}</svg>'
    )


_STRIP_KINDS = {"x": "exact", "c": "candidate", "s": "semantic", "b": "both", ".": "nothing"}
_STRIP_NAMES = {
    "exact": "exact",
    "candidate": "candidate",
    "semantic": "eligible",
    "both": "exact and planned",
    "nothing": "to be computed",
}


def _decades(low: float, high: float) -> tuple[float, float]:
    """A range with a little air, at least a third of a decade wide."""
    if high / low < 2:
        middle = math.sqrt(low * high)
        low, high = middle / 1.5, middle * 1.5
    return low / 1.15, high * 1.15


def _log_axis(low: float, high: float, first: float, last: float) -> Callable[[float], float]:
    scale = (last - first) / (math.log(high) - math.log(low))
    return lambda value: first + (math.log(value) - math.log(low)) * scale


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of every decade; where that gives too few, evenly spaced values."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [
        step * 10.0**power
        for power in range(first, last + 1)
        for step in steps
        if low <= step * 10.0**power <= high
    ]
    if len(ticks) >= 2:
        return ticks
    return [low * (high / low) ** (part / 4) for part in range(1, 4)]


def _short(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:.3g}k"
    return f"{value:.3g}"


def _frame(x_label: str, y_label: str) -> str:
    middle_x, middle_y = (_LEFT + WIDTH - _RIGHT) / 2, (_TOP + HEIGHT - _BOTTOM) / 2
    return (
        f'<rect class="frame" x="{_LEFT}" y="{_TOP}" width="{WIDTH - _LEFT - _RIGHT}" '
        f'height="{HEIGHT - _TOP - _BOTTOM}"/>'
        f'<text class="label" x="{middle_x}" y="{HEIGHT - 8}">{escape(x_label)}</text>'
        f'<text class="label" transform="translate(14 {middle_y}) rotate(-90)">'
        f"{escape(y_label)}</text>"
    )


def _x_tick(x: float, text: str) -> str:
    return (
        f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{HEIGHT - _BOTTOM}"/>'
        f'<text class="tick middle" x="{x:.1f}" y="{HEIGHT - _BOTTOM + 16}">{escape(text)}</text>'
    )


def _y_tick(y: float, text: str) -> str:
    return (
        f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}"/>'
        f'<text class="tick end" x="{_LEFT - 6}" y="{y + 4:.1f}">{escape(text)}</text>'
    )


def _svg(parts: Sequence[str], description: str) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(description)}">{"".join(parts)}</svg>'
    )
