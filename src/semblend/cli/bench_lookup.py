"""`semblend bench lookup`: coverage against brute force, and cost at scale."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Annotated, TypeAlias

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console

from semblend.bench.benchmark_report import BenchmarkReport
from semblend.bench.lookup_meaning import meaning_work, measure_recall, measure_windows
from semblend.bench.lookup_workloads import Workload, negatives, positives
from semblend.core.namespace import Namespace
from semblend.core.plan import Plan
from semblend.core.settings import EmbedderKind, Settings
from semblend.core.tokens import TokenArray
from semblend.pipeline import SemBlendPipeline
from semblend.planning.cost import CostModel
from semblend.terminal.progress import Advance, advancing, unseen

RUN_TOKENS = 32
DONOR_TOKENS = 2_000
HERE = Namespace.of(model="bench")
ELSEWHERE = Namespace.of(model="bench", tenant="somebody-else")
STDERR = Console(stderr=True)
COVERAGE_WORK, DONOR_WORK = 400, 4
"""Rough cost of a coverage workload and of a donor, for the time left; see `meaning_work`."""
Mask: TypeAlias = npt.NDArray[np.bool_]


def bench_lookup(
    donors: Annotated[
        int, typer.Option(help="Donors in the large store, 2,000 tokens each.")
    ] = 100_000,
    repeats: Annotated[
        int, typer.Option(help="Timed calls per figure; the median is reported.")
    ] = 200,
    vectors: Annotated[int, typer.Option(help="Vectors in the semantic search.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Seed for all generated text.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure what discovery finds compared with brute force, and what it costs."""
    report = BenchmarkReport("lookup")
    work = COVERAGE_WORK * len(positives(seed)) + DONOR_WORK * donors + meaning_work(vectors)
    with advancing("bench lookup", work, STDERR) as advance:
        measure_coverage(report, seed, advance)
        measure_negatives(report, seed)
        measure_scale(report, donors, repeats, seed, advance)
        measure_windows(report, seed, advance)
        measure_recall(report, vectors, seed, advance)
    report.show(as_json=as_json)
    raise typer.Exit(1 if report.failed else 0)


def measure_coverage(report: BenchmarkReport, seed: int, advance: Advance = unseen) -> None:
    """Measure how much of what brute force could reuse the plan reuses, and check the tokens."""
    for workload in positives(seed):
        plan = _plan(workload, HERE)
        oracle = _oracle(workload)
        spans = _covered(plan, workload.target.size)
        report.add(
            workload.name,
            "coverage of oracle",
            float((spans & oracle).sum() / max(1, oracle.sum())),
            "share",
            at_least=0.98,
        )
        report.add(
            workload.name, "tokens that differ", _differing(plan, workload), "tokens", at_most=0
        )
        advance(COVERAGE_WORK)


def measure_negatives(report: BenchmarkReport, seed: int) -> None:
    """Count span tokens that are not in an identical run, and plans that are not worth running."""
    cases = [(workload, HERE) for workload in negatives(seed)]
    known = positives(seed)[0]
    cases += [
        (Workload(name="other namespace", donors=known.donors, target=known.target), ELSEWHERE)
    ]
    for workload, namespace in cases:
        plan = _plan(workload, namespace)
        oracle = _oracle(workload)
        if namespace is not HERE:
            oracle[:] = False
        _add_negative(report, workload.name, plan, oracle, workload)
    plan = _plan(known, None)
    nothing = np.zeros(known.target.size, dtype=bool)
    _add_negative(report, "no namespace", plan, nothing, known)


def _add_negative(
    report: BenchmarkReport,
    name: str,
    plan: Plan,
    oracle: Mask,
    workload: Workload,
) -> None:
    spans = _covered(plan, workload.target.size)
    excess = int((spans & ~oracle).sum()) + _differing(plan, workload)
    report.add(name, "tokens beyond identical runs", excess, "tokens", at_most=0)
    line = CostModel().min_saved_share * plan.cost.cold
    below = int(plan.executable and plan.cost.saved < line)
    report.add(name, "plans below the worth-it line", below, "plans", at_most=0)


def measure_scale(
    report: BenchmarkReport, donors: int, repeats: int, seed: int, advance: Advance = unseen
) -> None:
    """Measure misses, hits, registration and eviction in CPU time, in a small and a large store."""
    rng = np.random.default_rng(seed)
    small = min(1_000, donors)
    # The last donors just fit, so the store then works at capacity.
    pipeline = _pipeline(max_donor_bytes=int(donors * DONOR_TOKENS * 6.7) + 2**20)
    name = f"{donors} donors"
    misses: dict[tuple[int, int], float] = {}
    known: list[TokenArray] = []
    registered = 0
    for size in (small, donors):
        for number in range(registered, size):
            text = _random(rng, DONOR_TOKENS)
            pipeline.register_donor(f"d{number}", text, HERE)
            if number % max(1, donors // 400) == 0:
                known.append(text)
            advance(DONOR_WORK)
        registered = size
        for tokens in (8_000, 32_000):
            prompts = [_random(rng, tokens) for _ in range(repeats)]
            misses[size, tokens] = _median_ms(_planning(pipeline, prompts))
    report.add(name, "miss p50, 8K tokens", misses[donors, 8_000], "ms", at_most=1.0)
    report.add(name, "miss p50, 32K tokens", misses[donors, 32_000], "ms", at_most=4.0)
    growth = misses[donors, 8_000] / misses[small, 8_000]
    report.add(name, f"miss cost against {small} donors", growth, "ratio", at_most=2.0)
    hits = [_composed(rng, known) for _ in range(repeats)]
    hit = _median_ms(_planning(pipeline, hits))
    report.add(name, "hit with cover p50, 8K tokens", hit, "ms", at_most=3.0)
    stats = pipeline.stats()
    bytes_per_token = stats.index_bytes / stats.stored_tokens
    report.add(name, "index bytes per token", bytes_per_token, "bytes", at_most=8.0)

    extra = 0
    while pipeline.stats().evictions == 0:  # fill the rest, so that registering evicts
        pipeline.register_donor(f"fill{extra}", _random(rng, DONOR_TOKENS), HERE)
        extra += 1
    texts = [_random(rng, DONOR_TOKENS) for _ in range(repeats)]
    registering = _median_ms(
        partial(pipeline.register_donor, f"full{i}", text, HERE) for i, text in enumerate(texts)
    )
    report.add(name, "register p50, at capacity", registering, "ms", at_most=2.0)
    evicting = _median_ms(partial(pipeline.evict, f"full{i}") for i in range(repeats))
    report.add(name, "evict p50, at capacity", evicting, "ms", at_most=1.0)


def _pipeline(max_donor_bytes: int = 64 * 2**20) -> SemBlendPipeline:
    return SemBlendPipeline(
        Settings(
            embedder=EmbedderKind.NONE,
            allow_uncertified=True,
            recompute_policy="none",
            max_donor_bytes=max_donor_bytes,
        )
    )


def _plan(workload: Workload, namespace: Namespace | None) -> Plan:
    pipeline = _pipeline()
    for number, donor in enumerate(workload.donors):
        pipeline.register_donor(str(number), donor, HERE)
    return pipeline.plan(workload.target, namespace)


def _planning(
    pipeline: SemBlendPipeline, prompts: list[TokenArray]
) -> Iterator[Callable[[], object]]:
    return (partial(pipeline.plan, prompt, HERE) for prompt in prompts)


def _composed(rng: np.random.Generator, known: list[TokenArray]) -> TokenArray:
    """Build 8,000 tokens: four stored documents, each after some new text."""
    chosen = rng.choice(len(known), 4, replace=False)
    parts = [part for i in chosen for part in (_random(rng, 25), known[i][:1_950])]
    return np.concatenate([_random(rng, 100), *parts])


def _oracle(workload: Workload) -> Mask:
    """Mark target tokens in any 32-token run that a donor holds, by brute force."""
    held: set[bytes] = set()
    for donor in workload.donors:
        held.update(_windows(donor))
    covered = np.zeros(workload.target.size, dtype=np.bool_)
    for start, window in enumerate(_windows(workload.target)):
        if window in held:
            covered[start : start + RUN_TOKENS] = True
    return covered


def _windows(tokens: TokenArray) -> Iterator[bytes]:
    raw = tokens.tobytes()
    width = RUN_TOKENS * tokens.itemsize
    return (raw[at : at + width] for at in range(0, len(raw) - width + 1, tokens.itemsize))


def _covered(plan: Plan, size: int) -> Mask:
    covered = np.zeros(size, dtype=np.bool_)
    for span in plan.spans:
        covered[span.target_start : span.target_end] = True
    return covered


def _differing(plan: Plan, workload: Workload) -> int:
    """Count span tokens that differ from the target's."""
    return sum(
        int(
            (
                workload.donors[int(span.donor_id)][span.donor_start : span.donor_end]
                != workload.target[span.target_start : span.target_end]
            ).sum()
        )
        for span in plan.spans
    )


def _median_ms(calls: Iterable[Callable[[], object]]) -> float:
    times = []
    for call in calls:
        started = time.thread_time()
        call()
        times.append(time.thread_time() - started)
    return float(np.median(times)) * 1e3


def _random(rng: np.random.Generator, tokens: int) -> TokenArray:
    return rng.integers(0, 32_000, tokens, dtype=np.int32)
