"""Axes, ticks and frames that all charts share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

WIDTH, HEIGHT = 560, 340
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 16, 46

Axis = Callable[[float], float]
"""Maps a value to a position on the drawing."""


def linear_axis(low: float, high: float, first: float, last: float) -> Axis:
    """Map values in [low, high] to [first, last]."""
    scale = (last - first) / (high - low)
    return lambda value: first + (value - low) * scale


def share_axis() -> Axis:
    """Map shares in [0, 1] to the frame, from the bottom up."""
    return linear_axis(0.0, 1.0, HEIGHT - BOTTOM, TOP)


def linear_ticks(high: float, most: int = 6) -> list[float]:
    """Round values from 0 to `high`, at most about `most` of them."""
    power = 10.0 ** math.floor(math.log10(high / most))
    step = next(size * power for size in (1, 2, 5, 10) if high / (size * power) <= most)
    return [step * number for number in range(math.floor(high / step + 1e-9) + 1)]


def log_range(low: float, high: float) -> tuple[float, float]:
    """A range with some margin, at least a third of a decade wide."""
    if high / low < 2:
        middle = math.sqrt(low * high)
        low, high = middle / 1.5, middle * 1.5
    return low / 1.15, high * 1.15


def log_axis(low: float, high: float, first: float, last: float) -> Axis:
    """Map positive values in [low, high] to [first, last], logarithmically."""
    scale = (last - first) / (math.log(high) - math.log(low))
    return lambda value: first + (math.log(value) - math.log(low)) * scale


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of every decade; evenly spaced values if that gives too few."""
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


def short(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:.3g}k"
    return f"{value:.3g}"


def frame(x_label: str, y_label: str) -> str:
    """The chart's border and axis labels."""
    middle_x, middle_y = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    return (
        f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" '
        f'height="{HEIGHT - TOP - BOTTOM}"/>'
        f'<text class="label" x="{middle_x}" y="{HEIGHT - 8}">{escape(x_label)}</text>'
        f'<text class="label" transform="translate(14 {middle_y}) rotate(-90)">'
        f"{escape(y_label)}</text>"
    )


def x_tick(x: float, text: str) -> str:
    """A vertical grid line and its label."""
    return (
        f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text class="tick middle" x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}">{escape(text)}</text>'
    )


def y_tick(y: float, text: str) -> str:
    """A horizontal grid line and its label."""
    return (
        f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
        f'<text class="tick end" x="{LEFT - 6}" y="{y + 4:.1f}">{escape(text)}</text>'
    )


def drawing(parts: Sequence[str], description: str) -> str:
    """Combine the parts into one drawing with a description for screen readers."""
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(description)}">{"".join(parts)}</svg>'
    )
