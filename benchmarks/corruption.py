"""Planted corruption: bit flips, truncations and worse in everything that is stored or sent.

    python -m benchmarks.corruption --json

Each trial damages one stored thing (K/V in memory, a file of the disk tier, a shared segment, a
donor's manifest, a certificate, a directory's snapshot, an event, a benchmark's manifest) and
reads it as the product does. Every damage must be detected and treated as a miss. What is read
must never differ from what was written, and nothing else may be raised. Some trials go through
the embedded engine, whose answers must stay the cold ones, token by token.
"""

from __future__ import annotations

import argparse
import random
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import torch

from benchmarks.corruption_targets import ReadResult, Target, make_targets
from semblend.bench.benchmark_report import BenchmarkReport

DEFAULT_TRIALS = 12_000


_KINDS = {"bit flip": 10, "several flips": 3, "zeroed run": 2, "moved run": 1}
_RESIZING = {"truncation": 4, "appended": 1}


def damage(data: bytes, roll: random.Random, *, resizable: bool) -> tuple[str, bytes]:
    """One kind of damage, and the resulting bytes, which differ from `data`."""
    kinds = {**_KINDS, **_RESIZING} if resizable else _KINDS
    while True:
        kind = roll.choices(list(kinds), weights=list(kinds.values()))[0]
        bad = bytearray(data)
        at = roll.randrange(len(bad))
        run = roll.randint(1, max(1, min(512, len(bad) - at)))
        if kind == "bit flip":
            bad[at] ^= 1 << roll.randrange(8)
        elif kind == "several flips":
            for _ in range(roll.randint(2, 8)):
                bad[roll.randrange(len(bad))] ^= 1 << roll.randrange(8)
        elif kind == "truncation":
            del bad[at:]
        elif kind == "zeroed run":
            bad[at : at + run] = bytes(run)
        elif kind == "appended":
            bad += roll.randbytes(roll.randint(1, 64))
        else:
            other = roll.randrange(len(bad) - run + 1)
            bad[at : at + run] = data[other : other + run]
        if bad != data:
            return kind, bytes(bad)


def trials(targets: list[Target], count: int) -> Iterator[Target]:
    """Targets in turn, each as often as its weight says."""
    cycle = [target for target in targets for _ in range(target.weight)]
    for number in range(count):
        yield cycle[number % len(cycle)]


def run(
    count: int, *, seed: int, folder: Path
) -> tuple[Counter[tuple[str, ReadResult]], list[str]]:
    """Plant `count` corruptions; return the outcomes by target, and what went wrong."""
    roll = random.Random(seed)
    seen: Counter[tuple[str, ReadResult]] = Counter()
    wrong: list[str] = []
    with ExitStack() as ending:
        targets = make_targets(folder, seed=seed)
        for target in targets:
            ending.callback(target.close)
        for target in trials(targets, count):
            kind, result = "", ReadResult.CRASHED
            try:
                kind, bad = damage(target.fresh(), roll, resizable=target.resizable)
                result = target.read(bad)
            except Exception as error:
                wrong.append(f"{target.name}, {kind}: {type(error).__name__}: {error}")
            else:
                if result in (ReadResult.WRONG, ReadResult.CRASHED):
                    wrong.append(f"{target.name}, {kind}: {result}")
            seen[target.name, result] += 1
    return seen, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=DEFAULT_TRIALS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", dest="as_json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        seen, wrong = run(arguments.trials, seed=arguments.seed, folder=Path(folder))
    command = shlex.join(["python", "-m", "benchmarks.corruption", *sys.argv[1:]])
    report = BenchmarkReport("corruption", command=command)
    for name in dict.fromkeys(name for name, _ in seen):
        planted = sum(seen[name, result] for result in ReadResult)
        report.add(name, "planted", planted, "corruptions")
        report.add(name, "detected", seen[name, ReadResult.DETECTED], "corruptions")
        if seen[name, ReadResult.SAME]:
            report.add(name, "read as what was written", seen[name, ReadResult.SAME], "corruptions")
    planted = sum(seen.values())
    missed = sum(seen[key] for key in seen if key[1] in (ReadResult.WRONG, ReadResult.CRASHED))
    report.add("all", "planted", planted, "corruptions", at_least=arguments.trials)
    report.add("all", "believed or crashed on", missed, "corruptions", at_most=0)
    report.add("all", "seconds", time.perf_counter() - started, "s")
    report.show(as_json=arguments.as_json)
    for line in wrong[:20]:
        print(line, file=sys.stderr)
    return 1 if report.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
