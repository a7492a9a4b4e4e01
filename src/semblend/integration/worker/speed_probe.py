"""Times passes and copies of this engine before it serves, for the cost model.

The blocks are those that proofs use: nothing is in the cache yet. Probes take turns, so that a
disturbance hits all of them, and the fastest run of each counts: others only add to it. It is
repeated until the fastest two of each are about equal. Ranks agree on how much is measured, and
what fails on one of them alone does not keep it from passes, because those have collectives.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch

from semblend.core.plan import Span
from semblend.core.tokens import TokenArray
from semblend.integration.scheduler.orders import LoadCommand
from semblend.integration.worker.donors import WorkerDonors, segment_keys
from semblend.integration.worker.port import KvAccess, Passes, Ranks
from semblend.integration.worker.sequences import BlockTable, VirtualSequence, block_table
from semblend.integration.worker.span_loader import SpanLoader
from semblend.kv.segments import Segment
from semblend.planning.engine_times import EngineTimes

logger = logging.getLogger("semblend.adapter")

SECONDS = 1.2
"""What the least number of rounds may take, roughly; it decides how large passes are."""
MOST_SECONDS = 5.0
"""No round begins after that: some engines are slow whatever they compute."""
ROUNDS, MOST_ROUNDS = 7, 21
_SETTLED = 1.2
"""How far the fastest two runs of a probe may be apart."""
_SMALL = 16
_LEAST, _LEAST_ON_GPU, _MOST = 64, 1024, 2048
"""Tokens of the largest pass. On a GPU small passes all take the same, so that they say nothing
about a token."""
_DEEPEST = 4096
_COPIED = 512
_PARTS = 8
"""Holes and spans of the probes that have several."""
_FIRST_TOKEN = 2
_DONOR = "semblend-speed-probe"
_SHARE_KEY = b"semblend-speed-0"
"""No namespace's: theirs are hashes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedEngine:
    """What is measured."""

    passes: Passes
    loader: SpanLoader
    access: KvAccess
    donors: WorkerDonors
    ranks: Ranks
    rank_count: int
    step_tokens: int
    max_positions: int


def measured(engine: TimedEngine) -> EngineTimes | None:
    """Measure; None where there is no room for it, or where it fails. Never raises."""
    started = time.perf_counter()
    try:
        engine_times = _Trial(engine).run()
    except Exception:
        logger.warning("SemBlend could not measure this engine's speed", exc_info=True)
        engine_times = None
    engine.donors.drop(_DONOR)
    engine.donors.take_lost()
    if not all(engine.ranks.all_true([engine_times is not None])):
        return None
    logger.debug("measured in %.2f s: %s", time.perf_counter() - started, engine_times)
    return engine_times


def are_settled(runs: Iterable[list[float]]) -> bool:
    """Whether the fastest two runs of each probe are about equal."""
    fastest = (sorted(times)[:2] for times in runs)
    return all(len(two) == 2 and two[1] <= _SETTLED * two[0] for two in fastest)


class _Trial:
    """A prompt in the empty cache."""

    def __init__(self, engine: TimedEngine) -> None:
        self._engine = engine
        access = engine.access
        free = access.blocks - access.scratch_block
        self._room = min(free * access.block_size, engine.max_positions, _DEEPEST)
        count = -(-self._room // access.block_size)
        blocks = range(access.scratch_block, access.scratch_block + count)
        self._block_ids = tuple(blocks)
        self._blocks: BlockTable = block_table(self._block_ids)
        self._tokens: TokenArray = np.full(self._room, _FIRST_TOKEN, dtype=np.int32)
        self._failed: Exception | None = None

    def run(self) -> EngineTimes | None:
        full = self._size()
        if full is None:
            return None
        half, small = full // 2, min(_SMALL, full // 4)
        before = self._room - half
        few, copied = small, min(_COPIED, self._room // 2)
        self._alone(lambda: self._donate(copied))
        probes: dict[str, Callable[[], None]] = {
            "small_s": lambda: self._pass((0, small)),
            "half_s": lambda: self._pass((0, half)),
            "full_s": lambda: self._pass((0, full)),
            "deep_s": lambda: self._pass((before, before + half)),
            "holes_s": lambda: self._pass(*self._holes(before, half)),
            "few_s": lambda: self._alone(lambda: self._copy(few, 1)),
            "copy_s": lambda: self._alone(lambda: self._copy(copied, 1)),
            "spans_s": lambda: self._alone(lambda: self._copy(copied, _PARTS)),
        }
        for probe in probes.values():  # kernels of a shape compile on first use
            probe()
        began = time.perf_counter()
        times: dict[str, list[float]] = {name: [] for name in probes}
        for number in range(1, MOST_ROUNDS + 1):
            for name, probe in probes.items():
                times[name].append(self._timed(probe))
            settled, in_time = self._engine.ranks.all_true(
                [are_settled(times.values()), time.perf_counter() - began < MOST_SECONDS]
            )
            if not in_time or (settled and number >= ROUNDS):
                break
        if self._failed is not None:
            raise self._failed
        return EngineTimes(
            small_tokens=small,
            half_tokens=half,
            full_tokens=full,
            deep_before=before,
            holes=_PARTS,
            few_tokens=few,
            copy_tokens=copied,
            spans=_PARTS,
            **{name: min(values) for name, values in times.items()},
        )

    def _size(self) -> int | None:
        """The largest pass that the time allows; the same on every rank."""
        most = min(_MOST, self._engine.step_tokens, self._room // 2)
        if most < _LEAST:
            return None
        least = _LEAST
        if self._engine.access.device.type == "cuda":
            least = min(_LEAST_ON_GPU, most)
        allowed = SECONDS / (3 * (ROUNDS + 1))  # a round is about three of the largest passes
        size = least
        while 2 * size <= most and 2 * self._agreed_seconds(size) <= allowed:
            size *= 2
        return size

    def _agreed_seconds(self, tokens: int) -> float:
        """What a pass takes, the mean of all ranks."""
        self._pass((0, tokens))
        self._pass((0, tokens))
        took = torch.tensor([self._timed(lambda: self._pass((0, tokens)))], dtype=torch.float64)
        return float(self._engine.ranks.summed(took)[0]) / self._engine.rank_count

    def _alone(self, action: Callable[[], None]) -> None:
        """What other ranks do not wait for; it fails at the end, when they do not either."""
        if self._failed is not None:
            return
        try:
            action()
        except Exception as error:
            self._failed = error

    def _holes(self, before: int, tokens: int) -> list[tuple[int, int]]:
        """As many tokens in several runs that end where the prompt does, with gaps between."""
        each = max(1, tokens // _PARTS)
        gap = max(1, min(each, (before - 1) // _PARTS))
        ends = [self._room - number * (each + gap) for number in range(_PARTS)]
        return [(end - each, end) for end in reversed(ends)]

    def _pass(self, *runs: tuple[int, int]) -> None:
        self._engine.passes.run(
            [
                VirtualSequence(tokens=self._tokens, start=start, end=end, blocks=self._blocks)
                for start, end in runs
            ],
            alone=True,
        )

    def _donate(self, tokens: int) -> None:
        """Keep the prompt's first tokens as a donor."""
        donors, prompt = self._engine.donors, self._tokens[:tokens]
        keys = segment_keys(_SHARE_KEY, prompt)
        donors.claim(_DONOR, prompt, keys)
        for key in keys:
            kv = self._engine.access.read(self._block_ids, key.start, key.start + key.length)
            place = donors.tiers.empty(kv.shape, kv.dtype, torch.device("cpu"))
            donors.tiers.put(Segment(key=key, kv=place.copy_(kv)))

    def _copy(self, tokens: int, parts: int) -> None:
        """Copy the donor to just behind itself, in equal parts one token apart."""
        each = tokens // parts
        spans = tuple(
            Span(
                donor_id=_DONOR,
                donor_start=part * each,
                target_start=part * each + part + 1,
                length=each,
            )
            for part in range(parts)
        )
        command = LoadCommand(
            request_id=_DONOR,
            block_ids=self._block_ids,
            tokens=self._tokens,
            start=0,
            end=self._room,
            copies=spans,
            holes=(),
        )
        load = self._engine.loader.begin(command)
        try:
            load.place_all()
            load.finish()
        finally:
            load.close()

    def _timed(self, probe: Callable[[], None]) -> float:
        self._wait()
        started, worked = time.perf_counter(), time.process_time()
        probe()
        self._wait()
        seconds = time.perf_counter() - started
        if self._engine.access.device.type != "cpu":
            return seconds
        # On a machine that others use, much of it is spent waiting for a turn.
        return min(seconds, time.process_time() - worked)

    def _wait(self) -> None:
        device = self._engine.access.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
