"""What a fleet needs, from measured constants: memory, event rate, lookup, restart.

    python -m benchmarks.fleet_sizing                      # the table of docs/fleet.md
    python -m benchmarks.fleet_sizing --constants mine.json --prompts-per-s 4

`benchmarks.fleet_directory` measures the constants; the arithmetic is here, so that another
machine's constants give that machine's table.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONSTANTS = Path(__file__).with_name("fleet_constants.json")
FLEETS = ((1, 10_000), (10, 10_000), (100, 10_000), (1_000, 10_000), (1_000, 100_000))
"""(workers, donors of each)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """One fleet."""

    workers: int
    donors: int
    tokens_per_donor: int
    sampling: int
    index_bytes: float
    events_per_s: float
    event_bytes_per_s: float
    directory_cpu_share: float
    """Share of one core needed to follow the log."""
    replay_s: float
    """Time to read every live donor from the log, on one core."""
    restart_s: float
    """Time to start from a snapshot."""


def size(
    constants: dict[str, Any],
    *,
    workers: int,
    donors_per_worker: int,
    tokens_per_donor: int,
    sampling: int,
    prompts_per_s: float,
) -> Sizing:
    """The figures of one fleet.

    Postings grow with tokens and shrink with sampling; a donor's row, its key and its event's
    envelope do not. In the steady state every prompt registers one donor and evicts one.
    """
    donors = workers * donors_per_worker
    measured = constants["postings_per_donor"]
    marks = tokens_per_donor // 512
    words = tokens_per_donor / 9 / sampling
    postings = words + marks
    slot = 8 / 0.75
    fixed = constants["index_bytes_per_donor"] - measured * slot
    frame = constants["event_bytes"] - _wire(constants["tokens_per_donor"], constants["sampling"])
    event_bytes = frame + _wire(tokens_per_donor, sampling)
    us = constants["decode_us_per_event"] + constants["apply_us_per_event"]
    us *= _event_us(constants, postings) / _event_us(constants, measured)
    rate = workers * prompts_per_s
    index_bytes = donors * (fixed + postings * slot)
    load_rate = constants["snapshot_bytes"] / max(0.01, constants["snapshot_load_s"])
    return Sizing(
        workers=workers,
        donors=donors,
        tokens_per_donor=tokens_per_donor,
        sampling=sampling,
        index_bytes=index_bytes,
        events_per_s=2 * rate,
        event_bytes_per_s=rate * (event_bytes + 250),
        directory_cpu_share=rate * (us + constants["evict_us"]) / 1e6,
        replay_s=donors * us / 1e6,
        restart_s=index_bytes / load_rate,
    )


def _event_us(constants: dict[str, Any], postings: float) -> float:
    """Time of a registration in a small index; larger indexes scale in proportion."""
    return float(constants["us_per_event_fixed"] + constants["us_per_posting"] * postings)


def _wire(tokens: int, sampling: int) -> float:
    """Bytes of an event that depend on the donor: base64 of its words, JSON of its segments."""
    return tokens / 9 / sampling * 8 * 4 / 3 + tokens // 512 * 125


def table(constants: dict[str, Any], prompts_per_s: float) -> str:
    """The sizings as Markdown."""
    lines = [
        "| Workers | Donors | Tokens a donor | Sampling | Index | Events/s | Log | Directory CPU "
        "| Replay | From a snapshot |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for workers, donors in FLEETS:
        for tokens, sampling in ((2048, 8), (8192, 8), (8192, 32)):
            one = size(
                constants,
                workers=workers,
                donors_per_worker=donors,
                tokens_per_donor=tokens,
                sampling=sampling,
                prompts_per_s=prompts_per_s,
            )
            lines.append(
                f"| {one.workers:,} | {one.donors:,} | {one.tokens_per_donor:,} "
                f"| {one.sampling} | {_bytes(one.index_bytes)} | {one.events_per_s:,.0f} "
                f"| {_bytes(one.event_bytes_per_s)}/s | {one.directory_cpu_share:.1%} "
                f"| {_time(one.replay_s)} | {_time(one.restart_s)} |"
            )
    return "\n".join(lines)


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.3g} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--constants", type=Path, default=CONSTANTS)
    parser.add_argument("--prompts-per-s", type=float, default=2.0, help="per worker")
    options = parser.parse_args()
    constants = json.loads(options.constants.read_text(encoding="utf-8"))
    print(table(constants, options.prompts_per_s))


if __name__ == "__main__":
    main()
