"""What a request pays for others: capturing the previous prompt, and lookups that miss."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from benchmarks.gpu.machine import Figure, at_most, info, wall_s
from benchmarks.gpu.scenarios import Bench
from benchmarks.gpu.seven_b import SEGMENT_TOKENS, hit_plan, random_donor

from semblend.core.tokens import TokenArray
from semblend.discovery.donor_store import DonorStore
from semblend.engine.batch import ComputeRun
from semblend.engine.cache.pages import PageTable
from semblend.engine.materialise import load_spans
from semblend.engine.segmented import compute, runs_of_plan
from semblend.engine.streams import SideStream
from semblend.kv.segments import Segment, SegmentKey
from semblend.kv.tiers.memory import MemoryTier

NAMESPACE = b"0123456789abcdef"


def capture_overhead(bench: Bench, lengths: tuple[int, ...], repeats: int = 17) -> list[Figure]:
    """Time to first token of a cold prompt while the previous prompt is copied to the host.

    Copying works as in the engine: a thread, a side stream, and the host tier with its
    checksums. Alternates with prompts after which nothing is captured.
    """
    figures = []
    for size in (length for length in lengths if length >= 8192):
        pages = np.arange(2 * bench.pool.pages_for(size), dtype=np.int32)
        before, after = (PageTable(pages=part, page_size=16) for part in np.split(pages, 2))
        tokens = bench.tokens(size)
        tier = MemoryTier.on_host(capacity_bytes=2 * size * bench.model.kv_shape.token_bytes)
        side = SideStream(bench.model.device)
        capture = partial(_capture, bench, tier, tokens, before, side)
        bench.compute_cold(tokens, before)
        capture(side.mark(), [])
        capture(side.mark(), [])
        with_capture, without, captured = [], [], []
        for _ in range(repeats):
            without.append(_timed(bench, tokens, after))
            done: list[float] = []
            thread = threading.Thread(target=capture, args=(side.mark(), done))
            thread.start()
            with_capture.append(_timed(bench, tokens, after))
            thread.join()
            captured += done
        ratio = float(np.median(np.array(with_capture) / np.array(without))) - 1
        case = f"capture {size}"
        figures += [
            info(case, "ttft_without", float(np.median(without)) * 1e3, "ms"),
            info(case, "ttft_with", float(np.median(with_capture)) * 1e3, "ms"),
            info(case, "capture_time", float(np.median(captured)) * 1e3, "ms"),
            at_most(case, "overhead", ratio, 0.01),
        ]
    return figures


def _timed(bench: Bench, tokens: TokenArray, table: PageTable) -> float:
    started = time.perf_counter()
    bench.compute_cold(tokens, table)
    return time.perf_counter() - started


def _capture(
    bench: Bench,
    tier: MemoryTier,
    tokens: TokenArray,
    table: PageTable,
    side: SideStream,
    mark: torch.cuda.Event | None,
    done: list[float],
) -> None:
    started = time.perf_counter()
    size = len(tokens)

    def read(key: SegmentKey, shape: tuple[int, ...]) -> Segment:
        out = tier.empty(shape, bench.pool.data.dtype)
        return Segment(
            key=key, kv=bench.pool.read(table, key.start, key.start + key.length, out=out)
        )

    keys = SegmentKey.chain(NAMESPACE, tokens, [*range(0, size, SEGMENT_TOKENS), size])
    with side.after(mark):
        for key in keys:
            tier.remove(key)
            shape = bench.pool.read_shape(key.length)
            tier.put_from(
                key, key.length * bench.model.kv_shape.token_bytes, partial(read, key, shape)
            )
    done.append(time.perf_counter() - started)


def miss_overhead(bench: Bench, lengths: tuple[int, ...]) -> list[Figure]:
    """Look up a prompt that shares nothing with two million donor tokens."""
    store = DonorStore(256 << 20)
    for number in range(64):
        store.register(f"d{number}", bench.tokens(32768), NAMESPACE)
    figures = []
    for size in (length for length in lengths if length >= 8192):
        tokens = bench.tokens(size)
        lookup = wall_s(partial(store.lookup, tokens, NAMESPACE), repeats=9, warm_s=0.0)
        case = f"miss {size}"
        figures += [
            info(case, "lookup", lookup * 1e3, "ms"),
            at_most(case, "overhead", lookup / bench.cold_s[size], 0.01),
        ]
    return figures


def host_work(bench: Bench, repeats: int = 12) -> list[Figure]:
    """The host's work for a short pass, launched and replayed, and for a preceding hit."""
    tokens, table = bench.tokens(64), bench.table(64)
    run = [ComputeRun(tokens=tokens, start=0, table=table, logit_rows=1)]
    short = partial(compute, bench.model, bench.pool, run)
    launched = partial(short, replay=False)
    figures = [_host_time("pass of 64 rows, launched", launched, repeats)]
    figures.append(_host_time("pass of 64 rows, replayed", short, repeats))
    plan, prompt, donor_tokens = hit_plan(8192, 4, 0.05, bench.rng)
    donor, table = random_donor(bench.model, donor_tokens, on_host=False), bench.table(8192)

    def load() -> None:
        load_spans(
            plan, prompt, table=table, pool=bench.pool, rotary=bench.model.rotary, donors=donor
        )

    def compute_rest() -> None:
        compute(bench.model, bench.pool, runs_of_plan(plan, prompt, table))

    figures.append(_host_time("hit 8192 5%, spans", load, repeats))
    figures.append(_host_time("hit 8192 5%, pass", compute_rest, repeats))
    return figures


def _host_time(case: str, call: Callable[[], object], repeats: int) -> Figure:
    """Time until the call returns; the card may still be working."""
    spent = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        spent.append(time.perf_counter() - started)
    torch.cuda.synchronize()
    return info(case, "host_time", float(np.median(spent)) * 1e3, "ms")
