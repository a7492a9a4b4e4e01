"""Checks and times the engine on a GPU: ceilings, kernels, cold, hits, misses, capture, decode.

Run from the repository root; torch, triton, transformers, safetensors and numpy suffice:

    PYTHONPATH=src:. python benchmarks/gpu/prefill.py --out results.json    # or --json, to stdout

`--parts engine` times hits through the whole engine. It needs what the engine is installed with
(pydantic, rapidfuzz, xxhash) and does not run by default.

Correctness comes first: nothing is timed unless every check passes. Figures are medians of one
run; ratios are relative to what was measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.gpu import attention_shapes, checks, kernels
from benchmarks.gpu.machine import Ceilings, Figure, measure_ceilings, profile
from benchmarks.gpu.scenarios import LENGTHS, SHARES, Bench
from benchmarks.gpu.seven_b import hit_plan, make_model, make_pool, random_donor

PARTS = ("checks", "copy", "shapes", "cold", "hits", "overheads", "decode", "profiles")
PROFILED = ((8192, 0.05), (32768, 0.05), (32768, 0.15))


class Report:
    """Prints figures as they come, so that an interrupted run has reported what it knew."""

    def __init__(self, out: Path | None, *, json: bool = False) -> None:
        self.figures: list[Figure] = []
        self.profiles: dict[str, Any] = {}
        self.out = out
        self.json = json
        self.started = time.perf_counter()

    def add(self, name: str, part: Callable[[], list[Figure]]) -> bool:
        """Run one part; False if any of its figures misses its target."""
        figures = part()
        self.figures += figures
        for figure in figures:
            mark = "" if figure.target is None else f" (target {figure.target:g})"
            state = "ok  " if figure.ok else "MISS"
            self.say(f"{state} {figure.case}: {figure.metric} {figure.value:.4g}{mark}")
        self.say(f"-- {name}: {time.perf_counter() - self.started:.0f} s so far")
        self.write()
        return all(figure.ok for figure in figures)

    def say(self, line: str) -> None:
        """Print progress; with --json standard output is reserved for the JSON."""
        print(line, file=sys.stderr if self.json else sys.stdout, flush=True)

    def body(self) -> dict[str, Any]:
        return {
            "benchmark": "gpu-prefill",
            "command": " ".join(["python", *sys.argv]),
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "rows": [asdict(figure) for figure in self.figures],
            "profiles": self.profiles,
        }

    def write(self) -> None:
        if self.out is not None:
            self.out.write_text(json.dumps(self.body(), indent=1), encoding="utf-8")


def main() -> int:
    """Run the requested parts; 0 only if every figure reaches its target."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write JSON here")
    parser.add_argument("--json", action="store_true", help="print JSON, progress to stderr")
    parser.add_argument(
        "--parts", default=",".join(PARTS), help="comma-separated, of: all these, engine"
    )
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--spans", default="1,4,16")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks/gpu/prefill.py needs an NVIDIA GPU", file=sys.stderr)
        return 2
    parts = options.parts.split(",")
    lengths = tuple(int(size) for size in options.lengths.split(","))
    spans = tuple(int(count) for count in options.spans.split(","))
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    report = Report(options.out, json=options.json)
    if "checks" in parts:
        sound = report.add("attention", lambda: checks.check_attention(rng))
        sound &= report.add("passes", lambda: checks.check_passes(rng))
        if not sound:
            return 1
    ceilings = measure_ceilings()
    report.add("ceilings", ceilings.figures)
    if "copy" in parts:
        report.add("fused copy", lambda: _fused_copy(rng, ceilings))
    if "shapes" in parts:
        report.add("attention by tile shape", attention_shapes.time_shapes)
    if "engine" in parts:
        report.add("engine", _through_engine)
    if {"cold", "hits", "overheads", "decode", "profiles"} & set(parts):
        plain, model = make_model()
        plain.set_attn_implementation("sdpa")
        bench = Bench(plain, model, make_pool(model, 16 * 4352), ceilings)
        report.add("cold", lambda: bench.cold(lengths))
        if "hits" in parts:
            report.add("hits", lambda: bench.hits(lengths, SHARES, spans))
        if "overheads" in parts:
            _overheads(bench, report, lengths)
        if "decode" in parts:
            report.add("decode", bench.decode)
        if "profiles" in parts:
            _profile(bench, report)
    report.write()
    missed = [figure for figure in report.figures if not figure.ok]
    report.say(f"{len(report.figures)} figures, {len(missed)} miss their target")
    if options.json:
        print(json.dumps(report.body(), indent=1))
    return 1 if missed else 0


def _overheads(bench: Bench, report: Report, lengths: tuple[int, ...]) -> None:
    """Tiers and the donor index need xxhash; without it the report says these are missing."""
    try:
        from benchmarks.gpu import overheads
    except ImportError as error:
        report.say(f"miss and capture overheads are NOT measured: {error}")
        missing = Figure(case="overheads", metric="measured", value=0, unit="", target=1, ok=False)
        report.add("overheads", lambda: [missing])
        return
    report.add("host work", lambda: overheads.host_work(bench))
    report.add("miss", lambda: overheads.miss_overhead(bench, lengths))
    report.add("capture", lambda: overheads.capture_overhead(bench, lengths))


def _through_engine() -> list[Figure]:
    from benchmarks.gpu.through_engine import through_engine

    return through_engine(make_model()[1])


def _fused_copy(rng: np.random.Generator, ceilings: Ceilings) -> list[Figure]:
    """One size of the fused copy; benchmarks/gpu/kernels.py checks and times the others."""
    rows = kernels.measure(rng, ceilings.copy, tokens=(32768,))
    return [Figure(**asdict(row)) for row in rows]


def _profile(bench: Bench, report: Report) -> None:
    """Device time by kernel for a cold prefill and for hits."""
    tokens, table = bench.tokens(16384), bench.table(16384)
    report.profiles["cold 16384"] = profile(lambda: bench.compute_cold(tokens, table))
    for size, share in PROFILED:
        plan, prompt, donor_tokens = hit_plan(size, 4, share, bench.rng)
        donor = random_donor(bench.model, donor_tokens, on_host=False)
        call = bench.hit_call(plan, prompt, bench.table(size), donor, on_host=False)
        report.profiles[f"hit {size} {share:.0%}"] = profile(call)
    for name, rows in report.profiles.items():
        report.say(f"{name}: {sum(row['ms'] for row in rows):.2f} ms in the longest kernels")
        for row in rows:
            report.say(f"  {row['ms']:9.3f} ms {row['calls']:5d} x {row['kernel']}")


if __name__ == "__main__":
    sys.exit(main())
