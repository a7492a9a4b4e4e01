"""Draws the documentation's diagrams: docs/images/*.svg.

    python scripts/diagrams.py

Each file contains its own light and dark colors and loads nothing. The plot takes its figures
from the table in docs/vllm.md. A test compares the files with what this script draws.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
WIDTH = 920
STYLE = """
text { font: 14px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #14181f; }
.bg { fill: #ffffff; stroke: #d9dde3; } .box { fill: #f1f3f6; stroke: #b9c1cc; }
.soft { fill: #5b6472; } .small { font-size: 12px; } .big { font-size: 17px; font-weight: 650; }
.bold { font-weight: 650; } .on { fill: #ffffff; } .middle { text-anchor: middle; }
.end { text-anchor: end; } .line { stroke: #5b6472; fill: none; stroke-width: 1.4; }
.dash { stroke-dasharray: 5 4; } .head { fill: #5b6472; } .ok { stroke: #009e73; }
.computed { fill: #b3bbc6; } .reused { fill: #00875f; } .recomputed { fill: #e69f00; }
.exact { fill: #0072b2; } .keys { fill: #dfe4ea; }
@media (prefers-color-scheme: dark) {
  text { fill: #e8ebf0; } .bg { fill: #171b21; stroke: #2a303a; }
  .box { fill: #222831; stroke: #48515f; } .soft, .head { fill: #9aa4b2; }
  .line { stroke: #9aa4b2; } .on { fill: #ffffff; } .computed { fill: #5d6878; }
  .reused { fill: #0b8f69; } .recomputed { fill: #d18f00; } .keys { fill: #333b47; }
}
"""


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """A line of text; `kind` lists classes of the style."""
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{named}>{escape(words)}</text>'


def bar(x: float, y: float, width: float, height: float, kind: str) -> str:
    """A filled run, with a hairline gap to its neighbor."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{max(0, width - 1.5):g}" height="{height:g}" rx="3" '
        f'class="{kind}"/>'
    )


def box(x: float, y: float, width: float, height: float, *lines: str, kind: str = "box") -> str:
    """A labelled box: the first line bold, the others small."""
    middle = y + height / 2 - 8.5 * (len(lines) - 1) + 5
    drawn = [
        text(
            x + width / 2,
            middle + 17 * number,
            line,
            "middle bold" if number == 0 else "middle small soft",
        )
        for number, line in enumerate(lines)
    ]
    shape = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"'
    return f'{shape} class="{kind}"/>{"".join(drawn)}'


def arrow(points: str, *, dashed: bool = False) -> str:
    """A line along `points` with a head at its end."""
    kind = "line dash" if dashed else "line"
    return f'<polyline points="{points}" class="{kind}" marker-end="url(#head)"/>'


def picture(height: float, title: str, *parts: str) -> str:
    """The whole file."""
    head = (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8Z" class="head"/></marker></defs>'
    )
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img" '
        f'aria-label="{escape(title)}">\n<style>{STYLE}</style>{head}\n'
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="12" class="bg"/>\n'
        f"{body}\n</svg>\n"
    )


def strip(x: float, y: float, *runs: tuple[float, str, str], height: float = 38) -> str:
    """Runs side by side: (width, class, label)."""
    drawn = []
    for width, kind, label in runs:
        drawn.append(bar(x, y, width, height, kind))
        on = "middle on" if kind in ("reused", "exact") else "middle"
        drawn.append(text(x + width / 2, y + height / 2 + 5, label, on))
        x += width
    return "".join(drawn)


def legend(y: float, *kinds: tuple[str, str]) -> str:
    """Colors and their meaning, in a row."""
    drawn, x = [], 24.0
    for kind, meaning in kinds:
        drawn.append(bar(x, y - 11, 15, 13, kind))
        drawn.append(text(x + 20, y, meaning, "small soft"))
        x += 44 + 6.6 * len(meaning)
    return "".join(drawn)


def problem() -> str:
    """The first picture: one document, two instructions."""
    left = 190.0
    return picture(
        236,
        "The same document after another instruction: a prefix cache computes it again, SemBlend "
        "copies its K/V and computes the rest",
        text(24, 42, "First request", "bold"),
        text(24, 60, "computed, kept", "small soft"),
        strip(
            left,
            26,
            (100, "computed", "instruction A"),
            (420, "computed", "document, 32,000 tokens"),
            (80, "computed", "question"),
        ),
        text(812, 50, "1,065 ms", "bold"),
        text(24, 102, "Second request", "bold"),
        text(24, 120, "exact prefix cache", "small soft"),
        strip(
            left,
            86,
            (60, "computed", "B"),
            (420, "computed", "the same document, computed again"),
            (110, "computed", "question"),
        ),
        text(812, 110, "1,065 ms", "bold"),
        text(24, 162, "Second request", "bold"),
        text(24, 180, "with SemBlend", "small soft"),
        strip(
            left,
            146,
            (60, "computed", "B"),
            (14, "recomputed", ""),
            (300, "reused", "the same document, K/V copied"),
            (12, "recomputed", ""),
            (94, "reused", ""),
            (110, "computed", "question"),
        ),
        text(812, 170, "85–239 ms", "bold"),
        legend(
            216,
            ("computed", "computed"),
            ("reused", "reused: copied, rotated to its new position"),
            ("recomputed", "recomputed for quality"),
        ),
        text(896, 216, "time to first token: vLLM, H200, 7B shape", "small soft end"),
    )


def segmented_prefill() -> str:
    """Spans are copied; all holes are virtual sequences of one pass."""
    left, scale = 190.0, 0.68
    runs = (
        (0, 120, "computed"),
        (120, 430, "reused"),
        (430, 520, "computed"),
        (520, 860, "reused"),
        (860, 980, "computed"),
    )
    target = "".join(bar(left + scale * a, 118, scale * (b - a), 34, kind) for a, b, kind in runs)
    holes = [(a, b) for a, b, kind in runs if kind == "computed"]
    sequences = "".join(
        bar(left, 214 + 30 * n, scale * a, 20, "keys")
        + bar(left + scale * a, 214 + 30 * n, scale * (b - a), 20, "computed")
        + text(24, 229 + 30 * n, f"virtual sequence {n + 1}", "small")
        for n, (a, b) in enumerate(holes)
    )
    return picture(
        352,
        "Segmented prefill: donor spans are copied into the request's own slots, and all holes are "
        "computed in one pass as virtual sequences",
        text(24, 46, "donor K/V", "bold"),
        bar(left + 30, 24, scale * 310, 34, "reused"),
        bar(left + 330, 24, scale * 340, 34, "reused"),
        text(left + 30 + scale * 155, 46, "span 1", "middle on"),
        text(left + 330 + scale * 170, 46, "span 2", "middle on"),
        arrow(f"{left + 136:g},60 {left + scale * 275:g},115"),
        arrow(f"{left + 446:g},60 {left + scale * 690:g},115"),
        text(left + 232, 92, "copy, rotate K to the new position", "small soft"),
        text(24, 140, "the request", "bold"),
        target,
        text(left + scale * 60, 140, "hole 1", "middle small"),
        text(left + scale * 475, 140, "hole 2", "middle small"),
        text(left + scale * 920, 140, "tail", "middle small"),
        text(24, 190, "One forward pass of the engine's own model, one varlen batch:", "bold"),
        sequences,
        text(
            24,
            330,
            "Each hole reads the keys from 0 to its own end. Every layer writes the K/V of all "
            "holes before it attends, so later holes see earlier ones.",
            "small soft",
        ),
    )


def life() -> str:
    """The life of a request."""
    steps = (
        ("namespace", "who may share"),
        ("discover", "which donors"),
        ("cover", "which spans"),
        ("gate", "worth it? certified?"),
        ("load", "copy and rotate"),
        ("compute", "holes and tail"),
    )
    drawn = []
    for number, (name, what) in enumerate(steps):
        x = 24 + 148 * number
        drawn.append(box(x, 78, 130, 62, name, what))
        if number:
            drawn.append(arrow(f"{x - 18},109 {x - 2},109"))
        if name != "compute":
            drawn.append(arrow(f"{x + 65},140 {x + 65},196", dashed=True))
    return picture(
        330,
        "The life of a request: namespace, discover, cover, gate, load, compute; any doubt on the "
        "way is a cold prefill; the ledger settles it once",
        text(24, 40, "request", "big"),
        arrow("92,48 92,74"),
        *drawn,
        box(24, 200, 720, 40, "no match, an error, a doubt: a normal cold prefill"),
        box(764, 200, 130, 40, "first token"),
        arrow("744,220 760,220"),
        arrow("829,140 829,196"),
        box(24, 268, 420, 44, "ledger", "one entry per request; only confirmed reuse counts"),
        box(464, 268, 430, 44, "donor", "exact prompts only, copied out after the first token"),
        arrow("300,240 260,265"),
        arrow("829,240 760,265"),
    )


def modes() -> str:
    """Which mode to choose."""
    return picture(
        318,
        "Choosing a mode: discovery_only to see what you would save, exact_prefix for lost "
        "prefixes, segmented with a certificate, segmented_experimental without",
        box(24, 24, 250, 56, "Load donor K/V at all?", "or only see what you would save"),
        arrow("274,52 640,52"),
        text(300, 44, "only see", "small soft"),
        box(644, 24, 252, 56, "discovery_only", "the default; reports, loads nothing"),
        arrow("149,80 149,104"),
        box(24, 106, 250, 56, "Only exact prefixes?", "K/V the engine's cache has lost"),
        arrow("274,134 640,134"),
        text(300, 126, "yes", "small soft"),
        box(644, 106, 252, 56, "exact_prefix", "exact; needs no certificate"),
        arrow("149,162 149,186"),
        box(24, 188, 250, 56, "Is there a certificate?", "this model, these weights, this dtype"),
        arrow("274,216 640,216"),
        text(300, 208, "yes", "small soft"),
        box(644, 188, 252, 56, "segmented", "spans anywhere, within the bound"),
        arrow("149,244 149,282 640,282"),
        text(164, 274, "no: run `semblend certify`, or, as an experiment", "small soft"),
        box(644, 256, 252, 50, "segmented_experimental", "every answer says: not certified"),
    )


def fleet() -> str:
    """Events go one way, requests the other."""
    workers = []
    for number, name in enumerate(("worker a", "worker b", "worker c")):
        y = 30 + 84 * number
        workers.append(box(560, y, 150, 62, name, "engine, donors"))
        workers.append(arrow(f"404,{140 + 6 * (number - 1)} 556,{y + 31}"))
        workers.append(arrow(f"710,{y + 31} 764,{150 + 10 * (number - 1)}", dashed=True))
    return picture(
        330,
        "A fleet: a gateway places requests on the worker that holds their donors; workers "
        "announce donors on a log that every gateway replays; K/V moves through a shared store",
        box(24, 110, 110, 62, "clients"),
        arrow("134,141 226,141"),
        box(230, 96, 174, 92, "gateway", "directory in memory,", "chooses the worker"),
        *workers,
        box(766, 110, 130, 82, "event log", "NATS JetStream:", "donor held, gone"),
        arrow("831,192 831,306 317,306 317,191", dashed=True),
        text(420, 298, "replayed into the directory", "small soft"),
        arrow("635,260 635,280"),
        '<polyline points="635,92 635,111" class="line"/>',
        '<polyline points="635,176 635,195" class="line"/>',
        text(648, 285, "shared store of K/V", "small soft"),
    )


def figures() -> list[tuple[str, list[float]]]:
    """(length, [cold, no recompute, 5 %, 15 %]) of the H200 table in docs/vllm.md, in ms."""
    page = (DOCS / "vllm.md").read_text(encoding="utf-8")
    rows = []
    for length in ("8K", "16K", "32K"):
        found = re.search(rf"^\| {length} \| ([\d,]+) \|(.*)\|$", page, re.MULTILINE)
        if found is None:
            raise SystemExit(f"docs/vllm.md has no row for {length}")
        cells = [cell.split()[0] for cell in found[2].split("|")]
        shown = [found[1], cells[0], cells[2], cells[3]]
        rows.append((length, [float(cell.replace(",", "")) for cell in shown]))
    return rows


def time_to_first_token() -> str:
    """Cold against reused, as measured."""
    kinds = ("computed", "reused", "reused", "reused")
    labels = ("cold", "0 %", "5 %", "15 %")
    drawn = []
    rows = figures()
    top = max(max(values) for _, values in rows)
    for group, (length, values) in enumerate(rows):
        x = 60 + 284 * group
        for number, value in enumerate(values):
            height = 200 * value / top
            at = x + 58 * number
            drawn.append(bar(at, 262 - height, 48, height, kinds[number]))
            drawn.append(text(at + 23, 255 - height, f"{value:,.0f}", "middle small bold"))
            drawn.append(text(at + 23, 278, labels[number], "middle small soft"))
        drawn.append(text(x + 110, 304, f"{length} prompt", "middle bold"))
    return picture(
        324,
        "Time to first token of vLLM on one H200, cold and with reuse: "
        + "; ".join(f"{length} {values[0]:g} to {values[1]:g} ms" for length, values in rows),
        text(
            24,
            32,
            "Time to first token, ms: cold, and reused with 0, 5 and 15 % recomputed",
            "bold",
        ),
        '<line x1="40" x2="890" y1="262" y2="262" class="line"/>',
        *drawn,
    )


PICTURES: dict[str, Callable[[], str]] = {
    "problem.svg": problem,
    "segmented-prefill.svg": segmented_prefill,
    "life-of-a-request.svg": life,
    "modes.svg": modes,
    "fleet.svg": fleet,
    "ttft-vllm-h200.svg": time_to_first_token,
}


def main() -> None:
    folder = DOCS / "images"
    folder.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (folder / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
