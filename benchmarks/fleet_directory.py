"""A directory under load: replays a whole fleet's log, looks up, saves and restores.

    python -m benchmarks.fleet_directory --workers 1000 --donors 10000 --output constants.json

Every event is decoded from JSON and applied by the code a gateway runs. Donors' fingerprints are
random words, which is what keyed fingerprints look like to a directory. A few hundred real
prompts are among them, so that lookups find something and can be checked.
"""

from __future__ import annotations

import argparse
import base64
import json
import resource
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from semblend.bench.benchmark_report import BenchmarkReport
from semblend.core.namespace import Namespace
from semblend.discovery.fingerprints import FINGERPRINTS_PER_TOKEN
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.events.codec import decode, encode
from semblend.fleet.events.event_values import (
    DonorEvicted,
    DonorRegistered,
    Event,
    EventSegment,
    GenerationReset,
    Heartbeat,
    Location,
)
from semblend.fleet.events.seal import sealed
from semblend.fleet.keys import FleetKeys, donor_key
from semblend.fleet.sketch import MARK_TOKENS, sketch

BATCH_EVENTS = 512
REAL_PROMPTS = 256
PROMPT_TOKENS = 8192
PLACEHOLDER = 9 * 10**18
KEYS = FleetKeys.of(Namespace.of(model="m"), b"the secret of this benchmark")


TARGETS = {"lookup_ms_p50": 2.0, "wrong_share": 0.0}
"""Upper limits of the figures."""


def main() -> int:
    """Measure and print; `--output` saves the figures for benchmarks.fleet_sizing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--donors", type=int, default=1000, help="donors per worker")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens per donor")
    parser.add_argument("--sampling", type=int, default=8)
    parser.add_argument("--lookups", type=int, default=500)
    parser.add_argument("--output", type=Path, default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = measure(options)
    if options.output is not None:
        options.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    command = shlex.join(["python", "-m", "benchmarks.fleet_directory", *sys.argv[1:]])
    report = BenchmarkReport("fleet_directory", command=command)
    case = f"{options.workers} workers, {figures['donors']} donors"
    for name, value in figures.items():
        report.add(case, name, value, _unit(name), at_most=TARGETS.get(name))
    report.show(as_json=options.json)
    return 1 if report.failed else 0


def _unit(name: str) -> str:
    """The unit, taken from the figure's name."""
    if name.endswith("_per_s"):
        return "1/s"
    parts = name.split("_")
    known = ("bytes", "us", "ms", "share", "tokens", "s")
    return next((unit for unit in known if unit in parts), "")


def measure(options: argparse.Namespace) -> dict[str, float | int]:
    """Measure everything, as one flat mapping."""
    total = options.workers * options.donors
    marks = options.tokens // MARK_TOKENS
    words = max(1, round(options.tokens * FINGERPRINTS_PER_TOKEN / options.sampling))
    random = np.random.default_rng(1)
    real = {
        f"real-{i}": random.integers(0, 50_000, PROMPT_TOKENS).astype(np.int32)
        for i in range(REAL_PROMPTS)
    }
    extra = REAL_PROMPTS * (PROMPT_TOKENS // MARK_TOKENS + PROMPT_TOKENS // options.sampling)
    before = resident_bytes()
    index = SketchIndex(
        max_donors=total + REAL_PROMPTS, max_postings=total * (words + marks) + extra
    )
    directory = Directory(index, lease_s=3600.0)

    decode_s, apply_s, events, wire_bytes = replay(directory, options, words, marks, random)
    directory.apply(real_events(real, options.sampling))
    for rank in directory.ranks:
        directory.hear(
            Heartbeat(
                worker_id=rank.name[0],
                dp_rank=0,
                generation=rank.generation,
                last_event_id=rank.last_event_id,
            )
        )
    figures: dict[str, float | int] = {
        "workers": options.workers,
        "donors": directory.stats().donors,
        "tokens_per_donor": options.tokens,
        "sampling": options.sampling,
        "postings_per_donor": words + marks,
        "event_bytes": round(wire_bytes / events),
        "events_per_s": round(events / (decode_s + apply_s)),
        "decode_us_per_event": round(decode_s / events * 1e6, 2),
        "apply_us_per_event": round(apply_s / events * 1e6, 2),
        "index_bytes_per_donor": round(index.nbytes / directory.stats().donors, 1),
        "resident_bytes_per_donor": round(
            (resident_bytes() - before) / directory.stats().donors, 1
        ),
        "dropped_postings_share": round(
            index.postings.dropped / max(1, total * (words + marks)), 6
        ),
    }
    figures.update(look_up(directory, real, options, random))
    figures.update(change(directory, options))
    figures.update(restart(directory, options))
    figures.update(slopes(options))
    figures["peak_resident_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return figures


def replay(
    directory: Directory,
    options: argparse.Namespace,
    words: int,
    marks: int,
    random: np.random.Generator,
) -> tuple[float, float, int, int]:
    """Read the whole log: (seconds decoding, seconds applying, events, bytes)."""
    decode_s, apply_s, events, wire_bytes = 0.0, 0.0, 0, 0
    for payloads in batches(options, words, marks, random):
        started = time.process_time()
        decoded = [decode(payload) for payload in payloads]
        decode_s += time.process_time() - started
        started = time.process_time()
        directory.apply(decoded)
        apply_s += time.process_time() - started
        events += len(payloads)
        wire_bytes += sum(map(len, payloads))
        if events // 1_000_000 != (events - len(payloads)) // 1_000_000:
            rate = events / (decode_s + apply_s)
            print(f"{events} events, {rate:.0f} per second", file=sys.stderr, flush=True)
    return decode_s, apply_s, events, wire_bytes


def slopes(options: argparse.Namespace) -> dict[str, float | int]:
    """The fixed cost of an event and the cost per posting, from two shapes of donors."""
    points = []
    for tokens in (2048, 8192):
        shape = argparse.Namespace(workers=100, donors=200, tokens=tokens, sampling=8)
        marks, words = tokens // MARK_TOKENS, round(tokens * FINGERPRINTS_PER_TOKEN / 8)
        index = SketchIndex(max_donors=20_000, max_postings=20_000 * (words + marks))
        random = np.random.default_rng(2)
        decode_s, apply_s, events, _ = replay(
            Directory(index, lease_s=None), shape, words, marks, random
        )
        points.append((words + marks, (decode_s + apply_s) / events * 1e6))
    (few, low), (many, high) = points
    slope = (high - low) / (many - few)
    return {"us_per_posting": round(slope, 3), "us_per_event_fixed": round(low - slope * few, 2)}


def batches(
    options: argparse.Namespace, words: int, marks: int, random: np.random.Generator
) -> Iterator[list[bytes]]:
    """The log with workers in turn, as it looks after everyone has been busy."""
    template = encode(registered("@donor@", np.zeros(words, np.uint64), marks, options.sampling))
    template = template[: template.rindex(b',"xxh3"')] + b"}"
    parts = template.decode().split(base64.b64encode(bytes(8 * words)).decode())
    payloads: list[bytes] = []
    for worker in range(options.workers):
        reset = Event(
            event_id=1, worker_id=f"w{worker}", dp_rank=0, data=GenerationReset(generation=1)
        )
        payloads.append(encode(reset))
    block = max(1, BATCH_EVENTS // 8)
    for first in range(0, options.donors, block):
        count = min(block, options.donors - first)
        for worker in range(options.workers):
            drawn = random.integers(0, 2**63, (count, words + marks), dtype=np.uint64) * 2
            for row in range(count):
                number = first + row
                text = parts[0] + base64.b64encode(drawn[row, :words].tobytes()).decode() + parts[1]
                text = text.replace("@donor@", f"d{number}").replace("@worker@", f"w{worker}")
                text = text.replace('"event_id":9', f'"event_id":{number + 2}', 1)
                for mark in range(marks):
                    text = text.replace(str(PLACEHOLDER + mark), str(drawn[row, words + mark]), 1)
                payloads.append(sealed(text.encode()))
            if len(payloads) >= BATCH_EVENTS:
                yield payloads
                payloads = []
    if payloads:
        yield payloads


def registered(donor_id: str, hashes: np.ndarray, marks: int, sampling: int) -> Event:
    """A registration with placeholders."""
    data = DonorRegistered(
        donor_id=donor_id,
        namespace_id=KEYS.namespace_id,
        token_count=2048,
        generation=1,
        location=Location(worker_id="@worker@", tier="host"),
        segments=tuple(
            EventSegment(start=i * MARK_TOKENS, end=(i + 1) * MARK_TOKENS, digest=PLACEHOLDER + i)
            for i in range(marks)
        ),
        sampling=sampling,
        hashes=hashes,
    )
    return Event(event_id=9, worker_id="@worker@", dp_rank=0, data=data)


def real_events(real: dict[str, np.ndarray], sampling: int) -> list[Event]:
    """The log of the only worker whose prompts are looked up."""
    made = [Event(event_id=1, worker_id="real", dp_rank=0, data=GenerationReset(generation=1))]
    for number, (donor_id, tokens) in enumerate(real.items()):
        drawn = sketch(tokens, KEYS, sampling=sampling)
        data = DonorRegistered(
            donor_id=donor_id,
            namespace_id=KEYS.namespace_id,
            token_count=len(tokens),
            generation=1,
            location=Location(worker_id="real"),
            segments=tuple(
                EventSegment(start=i * MARK_TOKENS, end=(i + 1) * MARK_TOKENS, digest=int(mark))
                for i, mark in enumerate(drawn.marks)
            ),
            sampling=sampling,
            hashes=drawn.hashes,
        )
        made.append(Event(event_id=number + 2, worker_id="real", dp_rank=0, data=data))
    return made


def look_up(
    directory: Directory,
    real: dict[str, np.ndarray],
    options: argparse.Namespace,
    random: np.random.Generator,
) -> dict[str, float | int]:
    """Look up 8K prompts with half of a real donor moved elsewhere, and unknown ones."""
    times: dict[str, list[float]] = {"hit": [], "miss": []}
    found = wrong = 0
    for number in range(options.lookups):
        prompt = random.integers(0, 50_000, PROMPT_TOKENS).astype(np.int32)
        kind = "hit" if number % 2 else "miss"
        donor_id = f"real-{number % REAL_PROMPTS}"
        if kind == "hit":
            prompt[1000 : 1000 + PROMPT_TOKENS // 2] = real[donor_id][: PROMPT_TOKENS // 2]
        started = time.process_time()
        drawn = sketch(prompt, KEYS, sampling=options.sampling)
        holdings = directory.lookup(drawn, KEYS.namespace_id).holdings
        times[kind].append(time.process_time() - started)
        best = holdings[0] if holdings else None
        if kind == "hit":
            found += best is not None and best.donor_key == donor_key("real", 0, donor_id)
        else:
            wrong += best is not None and best.covered_tokens > 256
    every = np.array(times["hit"] + times["miss"]) * 1e3
    return {
        "lookup_tokens": PROMPT_TOKENS,
        "lookup_ms_p50": round(float(np.percentile(every, 50)), 3),
        "lookup_ms_p99": round(float(np.percentile(every, 99)), 3),
        "lookup_hit_ms_p50": round(float(np.median(times["hit"]) * 1e3), 3),
        "lookup_miss_ms_p50": round(float(np.median(times["miss"]) * 1e3), 3),
        "found_share": round(found / max(1, len(times["hit"])), 4),
        "wrong_share": round(wrong / max(1, len(times["miss"])), 4),
    }


def change(directory: Directory, options: argparse.Namespace) -> dict[str, float | int]:
    """What one eviction costs, and what losing a worker costs."""
    worker, count = "w0", min(200, options.donors // 2)
    last = options.donors + 1
    started = time.process_time()
    for number in range(count):
        data = DonorEvicted(donor_id=f"d{number}", generation=1)
        last += 1
        directory.apply([Event(event_id=last, worker_id=worker, dp_rank=0, data=data)])
    evict_s = (time.process_time() - started) / count
    before = directory.stats().donors
    started = time.process_time()
    directory.doubt((f"w{options.workers - 1}", 0))
    lose_s = time.process_time() - started
    return {
        "evict_us": round(evict_s * 1e6, 1),
        "lose_worker_donors": before - directory.stats().donors,
        "lose_worker_ms": round(lose_s * 1e3, 3),
    }


def restart(directory: Directory, options: argparse.Namespace) -> dict[str, float | int]:
    """Save, and start again from the file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot"
        started = time.process_time()
        size = directory.save(path)
        saved = time.process_time() - started
        index = directory._index
        donors = directory.stats().donors
        capacity = index.rows.capacity
        postings = int(index.postings.tags.shape[0])
        directory._index = SketchIndex(max_donors=1, max_postings=1)
        del index
        fresh = Directory(_like(capacity, postings), lease_s=None)
        started = time.process_time()
        fresh.load(path)
        loaded = time.process_time() - started
        if fresh.stats().donors != donors:
            raise SystemExit("the snapshot does not contain what was saved")
    return {
        "snapshot_bytes": size,
        "snapshot_save_s": round(saved, 2),
        "snapshot_load_s": round(loaded, 2),
    }


def _like(max_donors: int, buckets: int) -> SketchIndex:
    """An index of exactly the same size."""
    from semblend.fleet.directory.postings import LOAD, SLOTS

    return SketchIndex(max_donors=max_donors, max_postings=int((buckets - 1) * LOAD * SLOTS) + 1)


def resident_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main())
