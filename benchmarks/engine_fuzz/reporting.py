"""One fuzz run, from the first request to the report."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence

from benchmarks.engine_fuzz.comparing import Comparison
from benchmarks.engine_fuzz.driving import Driver
from benchmarks.engine_fuzz.engine import FuzzEngine
from benchmarks.engine_fuzz.oracle import Oracle, Verdicts
from benchmarks.engine_fuzz.traffic import MOST_TOKENS, Traffic
from semblend.bench.benchmark_report import BenchmarkReport
from semblend.core.faults import FaultPoint


def longest(options: argparse.Namespace) -> int:
    """Tokens of the longest prompt."""
    return int(max(options.lengths) + 512)


def fuzz_engine(
    engine: FuzzEngine,
    options: argparse.Namespace,
    *,
    name: str,
    case: str,
    points: Sequence[FaultPoint],
    started: float,
) -> tuple[BenchmarkReport, list[str]]:
    """Drive an engine and judge its answers; return the report and every problem in words."""
    print(
        f"engine: {time.monotonic() - started:.0f} s to start, seed {options.seed}",
        file=sys.stderr,
        flush=True,
    )
    driver = Driver(
        engine=engine,
        traffic=Traffic(
            tokenizer=engine.tokenizer,
            seed=options.seed,
            lengths=options.lengths,
            longest=longest(options),
            prefixes_only=options.mode == "exact_prefix",
            policies=options.policies,
        ),
        seed=options.seed,
        in_flight=options.in_flight,
        fault_rate=options.faults,
        points=points,
    )
    driver.run(options.requests)
    if options.faults:
        driver.every_point_once()
    if options.broken == "load" and not driver.spoil_a_load():
        raise RuntimeError("there was no load to spoil")
    traffic_s = time.monotonic() - started
    left = engine.left_behind()
    steps = engine.steps
    oracle = Oracle(
        engine,
        margin=options.margin,
        batch_tokens=int(options.kv_tokens * 0.8) - MOST_TOKENS * options.in_flight,
    )
    verdicts = oracle.judge(driver.records)
    report = BenchmarkReport(name)
    _add_traffic(report, case, driver, steps=steps, faults=bool(options.faults))
    _add_verdicts(report, case, verdicts, oracle.comparison)
    strangers = _across_salts(driver)
    report.add(case, "loads from another salt's donors", len(strangers), "requests", at_most=0)
    report.add(case, "requests stuck", len(driver.stuck), "requests", at_most=0)
    for what, count in left.items():
        report.add(case, f"left behind: {what}", count, "", at_most=0)
    report.add(case, "seconds of traffic, start included", traffic_s, "s")
    report.add(case, "seconds in all", time.monotonic() - started, "s")
    troubles = [trouble for group in verdicts.wrong.values() for trouble in group]
    stuck = [f"STUCK {request}" for request in driver.stuck]
    engine.close()
    return report, [*troubles, *verdicts.cut_short, *stuck, *strangers]


def _across_salts(driver: Driver) -> list[str]:
    """Requests that received K/V of a donor with another salt."""
    found = []
    for record in driver.records:
        for donor_id in record.said.get("donor_ids", ()):
            giver = driver.engine.givers.get(donor_id, record.asked.salt)
            if giver != record.asked.salt:
                found.append(f"ACROSS SALTS {record.asked}: donor {donor_id} under {giver!r}")
    return found


def _add_traffic(
    report: BenchmarkReport, case: str, driver: Driver, *, steps: int, faults: bool
) -> None:
    records, engine = driver.records, driver.engine
    outcomes = Counter(str(record.said.get("outcome", "none")) for record in records)
    reasons = Counter(str(r.said["reason"]) for r in records if "reason" in r.said)
    preempted = [record for record in records if record.preemptions]
    report.add(case, "requests", len(records), "requests")
    report.add(case, "aborted", sum(record.aborted for record in records), "requests", at_least=1)
    report.add(case, "steps", steps, "steps")
    report.add(case, "largest batch", engine.largest_batch, "requests")
    report.add(case, "computed in chunks", len(engine.split_prompts), "requests", at_least=1)
    report.add(case, "preempted", len(preempted), "requests", at_least=1)
    reused = sum(record.tainted for record in preempted)
    report.add(case, "preempted over a load", reused, "requests")
    report.add(case, "with confirmed reuse", outcomes["materialised"], "requests", at_least=1)
    for outcome, count in sorted(outcomes.items()):
        report.add(case, f"outcome {outcome}", count, "requests")
    for reason, count in sorted(reasons.items()):
        report.add(case, f"reason {reason}", count, "requests")
    for point in driver.points if faults else ():
        fired = driver.fired[point]
        report.add(case, f"fault {point.value} fired", fired, "times", at_least=1)


def _add_verdicts(report: BenchmarkReport, case: str, verdicts: Verdicts, ties: Comparison) -> None:
    report.add(case, "answers checked", verdicts.checked, "answers", at_least=1)
    report.add(case, "equal to cold", verdicts.as_cold, "answers")
    report.add(case, "equal to the same load alone", verdicts.as_replay, "answers")
    report.add(case, "over a load, then cold", verdicts.mixed, "answers")
    report.add(case, "near ties", ties.near_ties, "places")
    report.add(case, "widest of them", ties.largest_tie, "nats")
    report.add(case, "loads that could not be repeated", verdicts.not_replayed, "loads")
    for group in ("reused", "not reused", "bystander"):
        wrong = len(verdicts.wrong.get(group, ()))
        report.add(case, f"wrong answers, {group}", wrong, "answers", at_most=0)
    report.add(case, "answers cut short", len(verdicts.cut_short), "answers", at_most=0)
