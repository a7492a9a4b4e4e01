"""Repeatedly kills a process that writes to the disk tier, reopens the tier, and checks it.

    python -m benchmarks.crash_recovery --json

A child writes, reads, evicts and removes segments, and reports what it starts and what it has
finished. It is killed (SIGKILL) at a random moment, or kills itself at a random system call of
the write path. The tier is then reopened: every segment whose write finished and that nothing
removed is there with every bit right, whatever is visible is complete, nothing partial is left,
and the cap holds. Several kills in a row hit the same folder.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from semblend.bench.benchmark_report import BenchmarkReport
from semblend.kv.segments import Segment, SegmentKey, kv_bytes
from semblend.kv.tiers import DiskTier
from semblend.kv.tiers.segment_file import HEADER_BYTES

DEFAULT_KILLS = 600
KILLS_A_FOLDER = 8
TOKENS = (4, 64, 512)
"""Segments of 1, 16 and 128 KiB."""
TIGHT_TOKENS, TIGHT_SEGMENTS = 64, 6
_MESSAGE = struct.Struct("<cQ")
_SYSTEM_CALLS = ("write", "fsync", "replace", "unlink", "open", "utime")


def segment(number: int, tokens: int) -> Segment:
    """Segment `number`, whose contents follow from the number."""
    ids = np.arange(number * 1000, number * 1000 + tokens, dtype=np.int32)
    generator = torch.Generator().manual_seed(number)
    kv = torch.randint(0, 2**15, (4, 2, tokens, 1, 16), dtype=torch.int16, generator=generator)
    key = SegmentKey.of(b"crash-recovery-1", ids, 0, tokens)
    return Segment(key=key, kv=kv.view(torch.bfloat16))


@dataclass(slots=True)
class Expected:
    """What must be there according to the child, and what the current operation may change."""

    held: dict[int, int] = field(default_factory=dict)
    """Segment number to its tokens."""
    next_number: int = 1
    writing: int | None = None
    removing: int | None = None

    def hear(self, kind: bytes, number: int, tokens_of: Callable[[int], int]) -> None:
        """Process one message from the child."""
        self.next_number = max(self.next_number, number + 1)
        if kind == b"P":
            self.writing = number
        elif kind == b"p":
            self.held[number], self.writing = tokens_of(number), None
        elif kind == b"R":
            self.removing = number
        elif kind == b"r":
            self.held.pop(number, None)
            self.removing = None
        elif kind == b"G":
            self.held.pop(number, None)


class Harness:
    """Kills children one after another and checks what they left."""

    def __init__(self, folder: Path, *, seed: int) -> None:
        self._folder = folder
        self._roll = random.Random(seed)
        self._tight = False
        self._expected = Expected()
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def run(self, kills: int) -> None:
        for number in range(kills):
            if number % KILLS_A_FOLDER == 0:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._tight = not self._tight
                self._expected = Expected()
            self._kill_one()
            self._look()

    @property
    def _capacity_bytes(self) -> int:
        if self._tight:
            return TIGHT_SEGMENTS * (HEADER_BYTES + segment(0, TIGHT_TOKENS).nbytes)
        return 1 << 28

    def _tokens_of(self, number: int) -> int:
        return TIGHT_TOKENS if self._tight else TOKENS[number % len(TOKENS)]

    # -- the child -----------------------------------------------------------------------

    def _kill_one(self) -> None:
        at_call = self._roll.randint(1, 60) if self._roll.random() < 0.5 else None
        seed = self._roll.getrandbits(32)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            try:
                self._write_until_killed(writing, seed, at_call)
            finally:
                os._exit(1)  # reached only if something went wrong; otherwise a kill ends it
        os.close(writing)
        if at_call is None:
            time.sleep(self._roll.uniform(0.0, 0.03))
            os.kill(child, signal.SIGKILL)
        self._listen(reading)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        self.counts["kills" if killed else "children that ended by themselves"] += 1
        self.counts["at a system call" if at_call else "at a moment"] += 1

    def _write_until_killed(self, pipe: int, seed: int, at_call: int | None) -> None:
        roll = random.Random(seed)
        held = dict(self._expected.held)
        numbers = {segment(number, tokens).key.digest: number for number, tokens in held.items()}
        tier = DiskTier(self._folder, capacity_bytes=self._capacity_bytes)
        if at_call is not None:
            _die_at_call(at_call)

        def say(kind: bytes, number: int) -> None:
            _raw_write(pipe, _MESSAGE.pack(kind, number))

        def gone(key: SegmentKey) -> None:
            number = numbers.pop(key.digest)
            held.pop(number, None)
            say(b"G", number)

        number = self._expected.next_number
        while True:
            what = roll.random()
            if what < 0.7 or not held:
                tokens = self._tokens_of(number)
                made = segment(number, tokens)
                numbers[made.key.digest] = number
                say(b"P", number)
                tier.put(made, left=gone)
                held[number] = tokens
                say(b"p", number)
                number += 1
                continue
            chosen = roll.choice(list(held))
            key = segment(chosen, held[chosen]).key
            if what < 0.85:
                tier.load(key)
            else:
                say(b"R", chosen)
                tier.remove(key)
                held.pop(chosen)
                say(b"r", chosen)

    def _listen(self, pipe: int) -> None:
        with open(pipe, "rb") as stream:
            said = stream.read()
        for at in range(0, len(said) - _MESSAGE.size + 1, _MESSAGE.size):
            kind, number = _MESSAGE.unpack_from(said, at)
            self._expected.hear(kind, number, self._tokens_of)
            self.counts["segments written"] += kind == b"p"

    # -- afterwards ----------------------------------------------------------------------

    def _look(self) -> None:
        expected = self._expected
        tier = DiskTier(self._folder, capacity_bytes=self._capacity_bytes)
        try:
            visible = {key.digest for key in tier.keys()}  # noqa: SIM118 - a tier is no dict
            candidates = {**expected.held}
            for number in (expected.writing, expected.removing):
                if number is not None:
                    candidates.setdefault(number, self._tokens_of(number))
            missing = []
            for number, tokens in candidates.items():
                made = segment(number, tokens)
                if made.key.digest not in visible:
                    missing.append(number)
                    continue
                visible.discard(made.key.digest)
                if not self._is_right(tier, made):
                    self._complain(f"segment {number} is visible and not right")
                else:
                    self.counts["segments read back"] += 1
                    expected.held[number] = tokens
            self._check_missing(missing)
            if visible:
                self._complain(f"{len(visible)} segments that nobody wrote")
            if tier.used_bytes > tier.capacity_bytes:
                self._complain("the cap is exceeded")
            left = [p.name for p in self._folder.iterdir() if p.suffix == ".partial"]
            if left:
                self._complain(f"partial files are left: {left}")
        finally:
            tier.close()
        for number in missing:
            expected.held.pop(number, None)
        expected.writing = expected.removing = None

    def _check_missing(self, missing: list[int]) -> None:
        """What is missing was in progress: being written, removed, or evicted to make room."""
        expected = self._expected
        under_way = {expected.writing, expected.removing}
        lost = [number for number in missing if number not in under_way]
        making_room = 1 if self._tight and expected.writing is not None else 0
        if len(lost) > making_room:
            self._complain(f"segments {lost} were written and are lost")

    def _is_right(self, tier: DiskTier, made: Segment) -> bool:
        back = tier.load(made.key)
        return back is not None and bytes(kv_bytes(back.kv)) == bytes(kv_bytes(made.kv))

    def _complain(self, what: str) -> None:
        self.wrong.append(what)


_raw_write = os.write


def _die_at_call(count: int) -> None:
    """Make this process kill itself at its `count`th system call of the write path, half the
    time before the call and half the time after it."""
    left = [count]

    def deadly(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and count % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*args, **kwargs)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapped

    for name in _SYSTEM_CALLS:
        setattr(os, name, deadly(getattr(os, name)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=DEFAULT_KILLS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", dest="as_json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        harness = Harness(Path(folder) / "tier", seed=arguments.seed)
        harness.run(arguments.kills)
    command = shlex.join(["python", "-m", "benchmarks.crash_recovery", *sys.argv[1:]])
    report = BenchmarkReport("crash recovery", command=command)
    counts = harness.counts
    report.add("disk tier", "kills", counts["kills"], "kills", at_least=arguments.kills)
    report.add("disk tier", "at a system call", counts["at a system call"], "kills")
    report.add("disk tier", "at a moment", counts["at a moment"], "kills")
    report.add("disk tier", "segments written", counts["segments written"], "segments")
    report.add("disk tier", "segments read back", counts["segments read back"], "segments")
    report.add("disk tier", "lost, wrong, partial or over", len(harness.wrong), "times", at_most=0)
    report.add("disk tier", "seconds", time.perf_counter() - started, "s")
    report.show(as_json=arguments.as_json)
    for line in harness.wrong[:20]:
        print(line, file=sys.stderr)
    return 1 if report.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
