"""Carries out loads on one rank: copy the spans, ask the policy, compute the holes.

Every load is answered, whatever happens: the engine waits for it. It is answered when its copy
has ended, because until then the copy writes into its blocks. A load that fails on any
rank fails on all, its blocks are reported before any step relies on them, and the engine
computes those tokens exactly.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from semblend.core.errors import DonorError
from semblend.core.faults import FaultPoint, reach
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.integration.scheduler.orders import LoadCommand, LoadFailure, WorkerReport
from semblend.integration.worker.loads_in_flight import (
    LoadInFlight,
    LoadsInFlight,
    Placed,
    wait_for,
)
from semblend.integration.worker.policy_probe import LoadProbe, PolicyDeclinedError
from semblend.integration.worker.port import KvAccess, Passes, Ranks, Watch
from semblend.integration.worker.sequences import VirtualSequence, sequences_of
from semblend.integration.worker.span_loader import DonorLostError, SpanLoader

logger = logging.getLogger("semblend.adapter")

_BUSY_SHARE = 4
_BUSY_TOKENS = 2048
"""While other requests decode, a step computes at most this many tokens of loads, and at most
its share of the step's tokens: the decoding requests wait for it."""


@dataclass(slots=True, eq=False)
class _Load:
    """One load, from the order to the answer."""

    copy: LoadInFlight
    command: LoadCommand
    """What was ordered; after a policy has chosen, what is left to do."""
    computed: bool = False
    """Whether its turn to compute has come, successful or not."""
    failure: LoadFailure | None = None


class WorkerLoads:
    """This rank's loads. One thread calls it."""

    def __init__(
        self,
        loader: SpanLoader,
        access: KvAccess,
        *,
        nested: Passes | None,
        ranks: Ranks,
        pass_tokens: int,
        threads: int,
    ) -> None:
        self._loader = loader
        self._access = access
        self._nested = nested
        self._ranks = ranks
        self._busy_tokens = min(_BUSY_TOKENS, max(1, pass_tokens // _BUSY_SHARE))
        self._copies = LoadsInFlight(self._copy_spans, device=access.device, threads=threads)
        self._loads: list[_Load] = []
        self._bad_blocks: set[int] = set()
        self._received: set[str] = set()

    def __len__(self) -> int:
        return len(self._loads)

    def step(self, commands: Sequence[LoadCommand], report: WorkerReport, *, idle: bool) -> None:
        """Start this step's loads and continue those in progress. Never raises."""
        for command in commands:
            self._loads.append(_Load(copy=self._copies.begin(command), command=command))
        if not self._loads:
            return
        try:
            if idle and not self._anything_to_do():
                self._copies.wait_a_little()
            ended, due = self._states(idle=idle)
            started = time.perf_counter()
            self._compute(due, report, idle=idle)
            if due:
                report.nested_ms += (time.perf_counter() - started) * 1e3
            self._answer([load for load in ended if load.computed], report)
        except Exception as error:
            logger.warning("SemBlend could not carry out its loads", exc_info=True)
            self._give_up(error, report)

    def cancel(self, reason: str) -> None:
        """The donors are no longer valid: loads in progress fail."""
        for load in self._loads:
            load.copy.cancelled = reason

    def wait(self) -> None:
        """Wait until nothing is being copied."""
        wait_for([load.copy for load in self._loads])

    def take_bad_blocks(self) -> set[int]:
        """Blocks of loads that failed since the last call."""
        bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def take_received(self) -> set[str]:
        """Requests whose loads have ended since the last call, successful or not."""
        received, self._received = self._received, set()
        return received

    def close(self) -> None:
        """Wait for the copies in progress."""
        self._copies.close()

    # -- in order ----------------------------------------------------------------------

    def _copy_spans(self, command: LoadCommand, placed: Placed) -> None:
        if command.refused:
            raise DonorError(command.refused)
        if (command.holes or command.refine) and self._nested is None:
            raise DonorError("holes, and no model to compute them with")
        load = self._loader.begin(command)
        try:
            placed(load.place_all())
            load.finish()
        finally:
            load.close()

    def _anything_to_do(self) -> bool:
        """Whether an idle step can continue any load, as far as this rank knows."""
        return any(
            load.copy.ended.done() or (not load.computed and load.copy.placed is not None)
            for load in self._loads
        )

    def _states(self, *, idle: bool) -> tuple[list[_Load], list[_Load]]:
        """Loads whose copies have ended on every rank, and those whose turn to compute it is.

        A pass may be queued after copies that are still in progress, which overlaps the two. In a
        busy step that would make other requests wait for the bus, so there a load is due only
        when its copy has ended, and only as many loads as the step has room for. One pass runs
        with one adapter, so loads of other adapters wait for the next step.
        """
        count = len(self._loads)
        flags = self._ranks.all_true(
            [
                *(load.copy.ended.done() for load in self._loads),
                *(load.copy.ended.done() or load.copy.placed is not None for load in self._loads),
            ]
        )
        ended = [load for load, done in zip(self._loads, flags[:count], strict=True) if done]
        ready = flags[count:] if idle else flags[:count]
        due: list[_Load] = []
        room = self._busy_tokens
        for load, is_ready in zip(self._loads, ready, strict=True):
            if not is_ready or load.computed:
                continue
            if due and load.command.adapter != due[0].command.adapter:
                continue
            room -= load.command.tokens_to_compute
            if due and room < 0 and not idle:
                break
            due.append(load)
        return ended, due

    def _compute(self, loads: list[_Load], report: WorkerReport, *, idle: bool) -> None:
        for load in loads:
            load.computed = True
        good = self._together(loads, partial(self._ready, idle=idle))
        for load in good:
            if load.command.refine is not None:
                self._probe(load, load.command.refine, report, idle=idle)
        self._fill_holes([load for load in good if load.failure is None], idle=idle)

    def _ready(self, load: _Load, *, idle: bool) -> None:
        """Raise if a load's spans are not in place, or its adapter is not what it was."""
        load.copy.check()
        if load.command.adapter is not None:
            if self._nested is None:
                raise DonorError("an adapter, and no model to compare it with")
            self._nested.prepare(load.command.adapter, alone=idle)

    def _probe(self, load: _Load, plan: Plan, report: WorkerReport, *, idle: bool) -> None:
        """Ask a load's policy and add what it chooses to the load."""
        probes = list[LoadProbe]()
        if self._nested is None:
            raise DonorError("no model to ask")  # the spans would not have been copied
        nested = _AfterCopies(self._nested, [load.copy], alone=idle)

        def lay_out(load: _Load) -> None:
            probes.append(LoadProbe(load.command, plan, self._access))

        def refine(load: _Load) -> None:
            load.command = probes[0].refined(nested, self._ranks.summed)

        if self._together(self._together([load], lay_out), refine):
            report.refined[load.command.request_id] = load.command.reused_tokens

    def _fill_holes(self, loads: list[_Load], *, idle: bool) -> None:
        """Compute the holes of all loads in one pass, or of none."""
        sequences = list[VirtualSequence]()
        if self._nested is None:
            return

        def lay_out(load: _Load) -> None:
            laid_out = sequences_of(load.command, load.command.holes)
            if laid_out:
                reach(FaultPoint.NESTED_PASS)
            sequences.extend(laid_out)

        good = self._together(loads, lay_out)
        if not sequences:
            return
        failure: LoadFailure | None = None
        try:
            _AfterCopies(self._nested, [load.copy for load in good], alone=idle).run(sequences)
        except Exception as error:
            logger.warning("SemBlend's nested pass failed", exc_info=True)
            failure = failure_of(error)
        if self._ranks.all_true([failure is None]) != [True]:
            for load in good:
                load.failure = failure or _FAILED_ELSEWHERE

    # -- answering ---------------------------------------------------------------------

    def take_clipped(self) -> int:
        """Numbers of moved K that did not fit into the cache's format since the last call."""
        return self._loader.take_clipped()

    def _together(self, loads: list[_Load], attempt: Callable[[_Load], None]) -> list[_Load]:
        """Attempt something with each load; returns those with which all ranks succeeded.

        A pass has collectives and is run by all ranks or by none, so everything that may fail
        on one of them is agreed on first.
        """
        if not loads:
            return []
        for load in loads:
            try:
                attempt(load)
            except Exception as error:
                logger.debug("SemBlend load failed", exc_info=True)
                load.failure = failure_of(error)
        fine = self._ranks.all_true([load.failure is None for load in loads])
        for load, good in zip(loads, fine, strict=True):
            if not good and load.failure is None:
                load.failure = _FAILED_ELSEWHERE
        return [load for load, good in zip(loads, fine, strict=True) if good]

    def _answer(self, loads: list[_Load], report: WorkerReport) -> None:
        """Report loads whose copies have ended, after one more check: they may have just failed."""
        good = [load for load in loads if load.failure is None]
        self._together(good, lambda load: load.copy.check())
        for load in loads:
            request_id = load.command.request_id
            if load.failure is None:
                report.loaded[request_id] += 1
                report.load_ms += load.copy.copy_ms
            else:
                # No other request has these blocks, and no step relies on them yet.
                spoilt = load.command.spoilt_blocks(load.failure, self._access.block_size)
                self._bad_blocks.update(spoilt)
                report.failed[request_id] = load.failure
            self._received.add(request_id)
        self._loads = [load for load in self._loads if load not in loads]

    def _give_up(self, error: Exception, report: WorkerReport) -> None:
        """Something outside the loads broke: all whose copies have ended fail."""
        for load in self._loads:
            load.computed, load.failure = True, load.failure or failure_of(error)
        for load in [load for load in self._loads if load.copy.ended.done()]:
            self._bad_blocks.update(load.command.claimed_blocks(self._access.block_size))
            report.failed[load.command.request_id] = load.failure or failure_of(error)
            self._received.add(load.command.request_id)
            self._loads.remove(load)


class _AfterCopies:
    """Passes over loads whose copies are queued: each layer waits for that layer's copies."""

    def __init__(self, passes: Passes, copies: Sequence[LoadInFlight], *, alone: bool) -> None:
        self._passes = passes
        self._copies = copies
        self._alone = alone

    def run(self, sequences: Sequence[VirtualSequence], *, watch: Watch | None = None) -> int:
        """As :class:`~semblend.integration.worker.port.Runs` says."""
        queued = any(copy.placed is not None for copy in self._copies)
        return self._passes.run(
            sequences,
            watch=watch,
            before_layer=self._wait_for if queued else None,
            alone=self._alone,
        )

    def _wait_for(self, layer: int) -> None:
        for copy in self._copies:
            copy.wait_for_layer(layer)


_FAILED_ELSEWHERE = LoadFailure(
    reason=DeclineReason.MATERIALISATION_FAILED.value, detail="failed on another rank"
)


def failure_of(error: BaseException) -> LoadFailure:
    """What a load that raised reports."""
    if isinstance(error, DonorLostError):
        return LoadFailure(
            reason=DeclineReason.DONOR_GONE.value, detail=str(error), donor_id=error.donor_id
        )
    if isinstance(error, PolicyDeclinedError):
        return LoadFailure(
            reason=DeclineReason.POLICY_DECLINED.value,
            detail=str(error),
            computed_until=error.computed_until,
        )
    return LoadFailure.by(error)
