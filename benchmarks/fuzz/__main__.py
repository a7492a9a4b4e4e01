"""Runs all fuzzing with one command.

    python -m benchmarks.fuzz --json
    python -m benchmarks.fuzz --targets event,policy --runs 2000 --examples 200 --requests 0

Uses three tools: atheris (coverage-guided, bytes) and hypothesis (well-formed documents) against
every parser, and schemathesis against the server's own OpenAPI description, over a scripted
engine and a real one. A finding stops its target and is written to tests/fuzz/corpus, where the
tests replay it from then on.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import re
import shlex
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st

from benchmarks.fuzz import api
from benchmarks.fuzz.real_engine import pages_held, real_engine
from benchmarks.fuzz.structured import damaged
from benchmarks.fuzz.targets import TARGETS, Target
from semblend.bench.benchmark_report import BenchmarkReport

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
_DONE = re.compile(r"Done (\d+) runs")
_SLOW = {"event", "snapshot", "settings", "bench_stream", "segment", "policy", "key_file"}
"""Targets that take a fraction of a millisecond or more: they get a fifth of the executions."""


def write_seeds() -> None:
    """Save every target's seeds under their hash."""
    for name, target in TARGETS.items():
        for seed in target.seeds():
            keep(name, seed)


def keep(name: str, data: bytes) -> Path:
    """Add one input to the corpus."""
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    return path


def coverage_guided(name: str, runs: int, seed: int) -> tuple[int, int]:
    """(executions, findings) of atheris on one target."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "benchmarks.fuzz.coverage_guided", name),
            *(f"-runs={runs}", f"-seed={seed + 1}", "-max_len=4096", "-timeout=20"),
            *("-rss_limit_mb=4096", f"-artifact_prefix={folder}/"),
            *(f"{folder}/new", str(CORPUS / name)),
        ]
        Path(folder, "new").mkdir()
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        found = [path for path in Path(folder).iterdir() if path.is_file()]
        for path in found:
            kept = keep(name, path.read_bytes())
            print(f"{name}: {kept}\n{_traceback(done.stderr)}", file=sys.stderr)
        finished = _DONE.search(done.stderr)
        if finished is None and not found:
            print(f"{name}: atheris ended early\n{done.stderr[-2000:]}", file=sys.stderr)
            return 0, 1
        return int(finished[1]) if finished else 0, len(found)


def structured(name: str, target: Target, examples: int, seed: int) -> tuple[int, int]:
    """(executions, findings) of hypothesis on one target."""
    count = 0

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of(damaged(target.seeds()), st.binary(max_size=256)))
    def check(data: bytes) -> None:
        nonlocal count, last
        count, last = count + 1, data
        target.run(data)

    last = b""
    check = hypothesis_seed(seed)(check)
    try:
        check()
    except Exception as error:
        print(f"{name}: {keep(name, last)}: {error!r}", file=sys.stderr)
        return count, 1
    return count, 0


def _read(progress: Path | None) -> dict[str, tuple[int, int]]:
    if progress is None or not progress.exists():
        return {}
    lines = (line.split() for line in progress.read_text(encoding="utf-8").splitlines())
    return {name: (int(count), int(found)) for name, count, found in lines}


def _traceback(text: str) -> str:
    start = text.find("=== Uncaught Python exception")
    return text[start : start + 3000] if start >= 0 else text[-3000:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--runs", type=int, default=65_000, help="atheris runs per fast target")
    parser.add_argument(
        "--examples", type=int, default=1_000, help="hypothesis examples per target"
    )
    parser.add_argument(
        "--requests", type=int, default=2_000, help="minimum schemathesis requests per engine"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--least", type=int, default=1_000_000, help="executions to reach")
    parser.add_argument("--progress", type=Path, help="file to resume from and append to")
    parser.add_argument("--write-seeds", action="store_true", help="save the seeds and exit")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.write_seeds:
        write_seeds()
        return 0
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    command = shlex.join(["python", "-m", "benchmarks.fuzz", *sys.argv[1:]])
    report = BenchmarkReport("fuzz", command=command)
    total, findings = 0, 0
    done = _read(options.progress)
    for name in filter(None, options.targets.split(",")):
        if name not in done:
            runs = options.runs // 5 if name in _SLOW else options.runs
            results = [
                coverage_guided(name, runs, options.seed) if runs else (0, 0),
                structured(name, TARGETS[name], options.examples, options.seed),
            ]
            count, found = (sum(column) for column in zip(*results, strict=True))
            done[name] = (count, found)
            if options.progress is not None:
                with options.progress.open("a", encoding="utf-8") as file:
                    file.write(f"{name} {count} {found}\n")
        count, found = done[name]
        report.add(name, "executions", count, "executions")
        report.add(name, "unhandled exceptions", found, "findings", at_most=0)
        total, findings = total + count, findings + found
        print(f"{name}: {count} executions, {found} findings", file=sys.stderr, flush=True)
    if options.requests:
        with real_engine() as engine:
            for case, served in (("HTTP API", None), ("HTTP API, real engine", engine)):
                requests, failures = api.fuzz(options.requests, seed=options.seed, engine=served)
                report.add(case, "requests", requests, "requests", at_least=options.requests)
                report.add(case, "failures", len(failures), "findings", at_most=0)
                for failure in failures:
                    print(failure, file=sys.stderr)
                total, findings = total + requests, findings + len(failures)
            for outcome, count in sorted(engine.stats().requests.items()):
                report.add(case, f"outcome {outcome}", count, "requests")
            report.add(case, "pages held in the end", pages_held(engine), "pages", at_most=0)
    report.add("all", "executions", total, "executions", at_least=options.least)
    report.add("all", "unhandled exceptions", findings, "findings", at_most=0)
    report.show(as_json=options.json)
    return 1 if report.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
