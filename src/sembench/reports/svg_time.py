"""Charts over the time of a run: when requests were due, and how they ended."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from sembench.reports.svg import Point
from sembench.reports.svg_frame import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    drawing,
    frame,
    linear_axis,
    linear_ticks,
    log_axis,
    log_range,
    log_ticks,
    short,
    x_tick,
    y_tick,
)

BUCKETS = 40


def timeline(
    points: Sequence[Point], *, end: float, y_label: str, limit: float | None = None
) -> str:
    """Points at (seconds, value) on a logarithmic value axis, with a line at `limit`."""
    shown = [point for point in points if point.y > 0]
    if not shown or end <= 0:
        return ""
    values = [point.y for point in shown] + ([limit] if limit else [])
    low, high = log_range(min(values), max(values))
    across, up = _seconds_axis(end), log_axis(low, high, HEIGHT - BOTTOM, TOP)
    parts = [frame("seconds since the start", y_label), *_second_ticks(across, end)]
    parts += [y_tick(up(tick), short(tick)) for tick in log_ticks(low, high)]
    if limit:
        parts.append(
            f'<line class="limit" x1="{LEFT}" y1="{up(limit):.1f}" '
            f'x2="{WIDTH - RIGHT}" y2="{up(limit):.1f}"/>'
        )
    parts += [
        f'<circle class="dot {escape(point.kind)}" cx="{across(point.x):.1f}" '
        f'cy="{up(point.y):.1f}" r="3.5"><title>{escape(point.title)}</title></circle>'
        for point in shown
    ]
    return drawing(parts, f"{y_label} over time")


def piles(events: Sequence[tuple[float, str]], kinds: Sequence[str], *, end: float) -> str:
    """Events of (seconds, kind), counted in equal buckets and stacked in the order of `kinds`.

    Heights are events per second, so that charts of different runs compare.
    """
    if not events or end <= 0:
        return ""
    width = end / BUCKETS
    counts = [dict.fromkeys(kinds, 0) for _ in range(BUCKETS)]
    for at, kind in events:
        counts[min(BUCKETS - 1, max(0, int(at / width)))][kind] += 1
    most = max(sum(bucket.values()) for bucket in counts) / width
    across, up = _seconds_axis(end), linear_axis(0.0, most * 1.08, HEIGHT - BOTTOM, TOP)
    parts = [
        frame("seconds since the start", "requests per second, when due"),
        *_second_ticks(across, end),
    ]
    parts += [y_tick(up(tick), short(tick)) for tick in linear_ticks(most)]
    for number, bucket in enumerate(counts):
        below = 0.0
        for kind in kinds:
            height = bucket[kind] / width
            if height:
                left, right = across(number * width), across((number + 1) * width)
                parts.append(
                    f'<rect class="pile {escape(kind)}" x="{left + 0.5:.1f}" '
                    f'y="{up(below + height):.1f}" width="{max(0.5, right - left - 1):.1f}" '
                    f'height="{up(below) - up(below + height):.1f}">'
                    f"<title>{bucket[kind]} {escape(kind)}, {number * width:.3g} to "
                    f"{(number + 1) * width:.3g} s</title></rect>"
                )
            below += height
    return drawing(parts, "requests per second over time")


def _seconds_axis(end: float) -> Axis:
    return linear_axis(0.0, end, LEFT, WIDTH - RIGHT)


def _second_ticks(across: Axis, end: float) -> list[str]:
    return [x_tick(across(tick), short(tick)) for tick in linear_ticks(end)]
