"""Draws the figures of benchmarks/gpu/prefill.py: python benchmarks/gpu/plot.py IN.json OUT.svg"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

PARTS = (
    ("attention", ("_attend", "_merge")),
    ("matrix products", ("nvjet", "gemm", "cutlass")),
    ("between products", ("_add_norm", "_silu", "_rotate_and_write")),
    ("gather, rotate, scatter", ("_copy_rotate",)),
)


def main(source: Path, target: Path) -> None:
    """One file with three panels: time to first token, share of the floor, where time goes."""
    plt.rcParams["svg.fonttype"] = "none"
    report = json.loads(source.read_text(encoding="utf-8"))
    figure, (times, floors, profile) = plt.subplots(1, 3, figsize=(15, 4.2))
    values = {(row["case"], row["metric"]): row["value"] for row in report["rows"]}
    sizes = sorted({int(case.split()[1]) for case, _ in values if case.startswith("cold ")})
    _times(times, values, sizes)
    _floors(floors, values, sizes)
    _profile(profile, report["profiles"])
    figure.suptitle(f"{report['device']}, Qwen2.5-7B's shape, bf16, medians of one run")
    figure.tight_layout()
    figure.savefig(target)


def _hit(size: int, share: int, place: str) -> str:
    return f"hit {size} {share}% 4 spans {place}"


def _times(axes: Any, values: dict[tuple[str, str], float], sizes: list[int]) -> None:
    axes.plot(
        sizes, [values[f"cold {n}", "plain_flash"] for n in sizes], "k:", label="plain, flash"
    )
    axes.plot(sizes, [values[f"cold {n}", "ttft"] for n in sizes], "k-o", label="cold")
    for share, colour in ((0, "C2"), (5, "C0"), (10, "C1"), (15, "C3")):
        for place, style in (("device", "-o"), ("host", "--x")):
            known = [n for n in sizes if (_hit(n, share, place), "ttft") in values]
            label = f"{share} % from {place}"
            line = [values[_hit(n, share, place), "ttft"] for n in known]
            axes.plot(known, line, style, color=colour, label=label)
    axes.set(xscale="log", yscale="log", xlabel="prompt tokens", ylabel="ms to first token")
    axes.set_xticks(sizes, [f"{n // 1024}K" for n in sizes])
    axes.set_xticks([], minor=True)
    axes.legend(fontsize=6, ncol=2)


def _floors(axes: Any, values: dict[tuple[str, str], float], sizes: list[int]) -> None:
    shares = (5, 10, 15)
    for number, size in enumerate(sizes):
        known = [
            (n, values[_hit(size, share, "device"), "of_floor"])
            for n, share in enumerate(shares)
            if (_hit(size, share, "device"), "of_floor") in values
        ]
        places = [n + number / (len(sizes) + 1) for n, _ in known]
        axes.bar(
            places, [value for _, value in known], 1 / (len(sizes) + 1), label=f"{size} tokens"
        )
    axes.axhline(1.5, color="k", linestyle=":", label="target")
    axes.set(ylabel="time / floor", xlabel="recomputed")
    axes.set_xticks(range(len(shares)), [f"{share} %" for share in shares])
    axes.legend(fontsize=7, ncol=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _profile(axes: Any, profiles: dict[str, list[dict[str, Any]]]) -> None:
    left = dict.fromkeys(profiles, 0.0)
    for part, names in PARTS:
        for case, rows in profiles.items():
            whole = sum(row["ms"] for row in rows)
            mine = sum(row["ms"] for row in rows if any(name in row["kernel"] for name in names))
            colour = f"C{[name for name, _ in PARTS].index(part)}"
            label = part if case == next(iter(profiles)) else None
            axes.barh(case, mine / whole, left=left[case], color=colour, label=label)
            left[case] += mine / whole
    axes.set(xlabel="share of device time")
    axes.legend(fontsize=7, ncol=2, loc="lower center", bbox_to_anchor=(0.4, 1.0))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
