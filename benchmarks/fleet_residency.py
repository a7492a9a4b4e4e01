"""A gateway following engine caches: the cost of a block, and the time to look up a prompt.

    python -m benchmarks.fleet_residency --workers 100 --blocks 10000

Batches are what vLLM publishes, decoded from MessagePack and applied by the code a gateway runs.
Every cache is full: each stored block evicts the oldest. Lookups are checked against the caches'
true state.
"""

from __future__ import annotations

import argparse
import importlib
import resource
import shlex
import sys
import time
from collections import deque

import numpy as np

from semblend.bench.benchmark_report import BenchmarkReport
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.residency.decoding import decode_batch
from semblend.fleet.residency.live_donors import LiveDonors

_MSGPACK = importlib.import_module("msgpack")
BLOCK = 16
PROMPT_TOKENS = 8192
PROMPT_BLOCKS = PROMPT_TOKENS // BLOCK


class Cache:
    """A full prefix cache of whole prompts, evicting the oldest, as batches."""

    def __init__(self, worker: int, blocks: int) -> None:
        self.random = np.random.default_rng(worker)
        self.prompts = max(1, blocks // PROMPT_BLOCKS)
        self.held: deque[tuple[np.ndarray, list[int]]] = deque()

    def step(self) -> bytes:
        """Compute one prompt of 8,192 tokens."""
        tokens = self.random.integers(0, 50_000, PROMPT_TOKENS).astype(np.int32)
        hashes = self.random.integers(0, 2**63, PROMPT_BLOCKS).tolist()
        events: list[dict[str, object]] = []
        if len(self.held) == self.prompts:
            _, gone = self.held.popleft()
            events.append({"type": "BlockRemoved", "block_hashes": gone, "medium": "GPU"})
        self.held.append((tokens, hashes))
        events.append(
            {
                "type": "BlockStored",
                "block_hashes": hashes,
                "parent_block_hash": None,
                "token_ids": tokens.tolist(),
                "block_size": BLOCK,
                "lora_id": None,
                "medium": "GPU",
                "extra_keys": [None] * PROMPT_BLOCKS,
                "group_idx": 0,
            }
        )
        packed: bytes = _MSGPACK.packb([time.time(), events, 0])
        return packed


def measure(workers: int, blocks: int, lookups: int) -> BenchmarkReport:
    names = [(f"w{number}", 0) for number in range(workers)]
    directory = Directory(SketchIndex(max_donors=16, max_postings=1000), lease_s=None)
    live = LiveDonors(directory, followed=names, secret=b"the secret of this benchmark")
    caches = [Cache(number, blocks) for number in range(workers)]
    before, spent, taken = _resident(), 0.0, 0
    for _ in range(caches[0].prompts + 1):
        for name, cache in zip(names, caches, strict=True):
            payload = cache.step()
            started = time.process_time()
            live.blocks(name, decode_batch(payload))
            spent += time.process_time() - started
            taken += PROMPT_BLOCKS
    held = sum(live.tracker.resident_blocks(name) for name in names)
    grown = _resident() - before - sum(t.nbytes + 36 * len(h) for c in caches for t, h in c.held)
    random, times, wrong = np.random.default_rng(0), [], 0
    for number in range(lookups):
        owner = number % workers
        tokens, _ = caches[owner].held[number % len(caches[owner].held)]
        cut = int(random.integers(1, PROMPT_TOKENS))
        prompt = np.concatenate((tokens[:cut], random.integers(50_000, 60_000, 8192 - cut)))
        started = time.perf_counter()
        found = live.resident(prompt.astype(np.int32))
        times.append(time.perf_counter() - started)
        truth = dict.fromkeys(names, 0) | {names[owner]: cut // BLOCK * BLOCK}
        wrong += found != truth
    case = f"{workers} workers, {held} blocks"
    p50, p99 = np.quantile(times, [0.5, 0.99]) * 1e3

    command = shlex.join(["python", "-m", "benchmarks.fleet_residency", *sys.argv[1:]])
    report = BenchmarkReport("fleet_residency", command=command)
    report.add(case, "a block stored or removed", spent / taken * 1e6, "us")
    report.add(case, "memory", grown / held, "bytes a block")
    report.add(case, "lookup of 8K tokens, p50", float(p50), "ms", at_most=2.0)
    report.add(case, "lookup of 8K tokens, p99", float(p99), "ms")
    report.add(case, "wrong answers", wrong, "lookups", at_most=0)
    return report


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--blocks", type=int, default=10_000, help="blocks per worker cache")
    parser.add_argument("--lookups", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report = measure(options.workers, options.blocks, options.lookups)
    report.show(as_json=options.json)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
