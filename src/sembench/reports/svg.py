"""Charts as inline SVG: no scripts, fonts or requests; colors come from the page's CSS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from sembench.reports.svg_frame import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    drawing,
    frame,
    log_axis,
    log_range,
    log_ticks,
    share_axis,
    short,
    x_tick,
    y_tick,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point of a scatter plot."""

    x: float
    y: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionSeries:
    """A named sample of a distribution plot."""

    name: str
    kind: str
    values: Sequence[float]


def scatter(points: Sequence[Point], *, x_label: str, y_label: str) -> str:
    """Two logarithmic axes with one range, and the line where both values are equal."""
    positive = [point for point in points if point.x > 0 and point.y > 0]
    if not positive:
        return ""
    values = [value for point in positive for value in (point.x, point.y)]
    low, high = log_range(min(values), max(values))
    across, up = (
        log_axis(low, high, LEFT, WIDTH - RIGHT),
        log_axis(low, high, HEIGHT - BOTTOM, TOP),
    )
    parts = [frame(x_label, y_label)]
    for tick in log_ticks(low, high):
        parts += [x_tick(across(tick), short(tick)), y_tick(up(tick), short(tick))]
    parts.append(
        f'<line class="equal" x1="{across(low):.1f}" y1="{up(low):.1f}" '
        f'x2="{across(high):.1f}" y2="{up(high):.1f}"/>'
    )
    parts += [
        f'<circle class="dot {escape(point.kind)}" cx="{across(point.x):.1f}" '
        f'cy="{up(point.y):.1f}" r="4"><title>{escape(point.title)}</title></circle>'
        for point in positive
    ]
    return drawing(parts, f"{y_label} against {x_label}")


def distributions(
    series: Sequence[DistributionSeries],
    *,
    x_label: str,
    limit: float | None = None,
    limit_label: str = "",
) -> str:
    """Empirical distribution functions over a logarithmic axis, with no bins to choose.

    `limit` is drawn as a vertical line: values left of it were in time.
    """
    samples = [(one, sorted(value for value in one.values if value > 0)) for one in series]
    values = [value for _, ordered in samples for value in ordered]
    if not values:
        return ""
    shown = [*values, limit] if limit is not None and limit > 0 else values
    low, high = log_range(min(shown), max(shown))
    across = log_axis(low, high, LEFT, WIDTH - RIGHT)
    up = share_axis()

    parts = [frame(x_label, "share of requests")]
    parts += [x_tick(across(tick), short(tick)) for tick in log_ticks(low, high)]
    parts += [y_tick(up(share), f"{share:.0%}") for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    for one, ordered in samples:
        if not ordered:
            continue
        steps = [f"M{across(low):.1f},{up(0):.1f}"]
        for index, value in enumerate(ordered):
            steps.append(f"H{across(value):.1f}V{up((index + 1) / len(ordered)):.1f}")
        steps.append(f"H{across(high):.1f}")
        parts.append(f'<path class="step {escape(one.kind)}" d="{"".join(steps)}"/>')
    if limit is not None and limit > 0:
        at = across(limit)
        parts.append(
            f'<line class="limit" x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}">'
            f"<title>{escape(limit_label)}</title></line>"
        )
    return drawing(parts, f"distribution of {x_label}")


def strip(letters: str) -> str:
    """A prompt's blocks from left to right; a run of one letter is one piece."""
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
    """A bar of (kind, share, title) pieces from left to right; the rest stays empty."""
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
