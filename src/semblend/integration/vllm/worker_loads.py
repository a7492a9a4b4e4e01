"""Carrying loads out on one rank: copy the spans, ask the policy, compute the holes.

Every load is answered, whatever happens: the engine waits for it. A load that fails on any
rank fails on all, its blocks are reported before any step counted on them, and vLLM
computes those tokens exactly.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from semblend.core.errors import DonorError
from semblend.core.faults import FaultPoint, reach
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.integration.vllm.loading import DonorLostError, SpanLoader
from semblend.integration.vllm.loads_in_flight import InFlight, LoadsInFlight
from semblend.integration.vllm.metadata import LoadCommand, LoadFailure, WorkerReport
from semblend.integration.vllm.nested_pass import NestedPass, sequences_of
from semblend.integration.vllm.paged_access import PagedAccess
from semblend.integration.vllm.pass_split import VirtualSequence
from semblend.integration.vllm.probing import LoadProbe
from semblend.integration.vllm.ranks import Ranks

logger = logging.getLogger("vllm.semblend")

_BUSY_SHARE = 4
_BUSY_TOKENS = 2048
"""While others decode, a step computes no more of loads than this, nor than its share of what
a step may compute: their next tokens wait for it."""


class WorkerLoads:
    """This rank's loads, from the order to the answer. One thread calls it."""

    def __init__(
        self,
        loader: SpanLoader,
        access: PagedAccess,
        *,
        nested: NestedPass | None,
        ranks: Ranks,
        pass_tokens: int,
        threads: int,
    ) -> None:
        self._loader = loader
        self._access = access
        self._nested = nested
        self._ranks = ranks
        self._busy_tokens = min(_BUSY_TOKENS, max(1, pass_tokens // _BUSY_SHARE))
        self._in_flight = LoadsInFlight(self._copy_spans, device=access.device, threads=threads)
        self._copied: list[InFlight] = []
        """Loads whose copies have ended on every rank, waiting for their turn."""
        self._bad_blocks: set[int] = set()
        self._received: set[str] = set()

    def __len__(self) -> int:
        return len(self._in_flight) + len(self._copied)

    def step(self, commands: Sequence[LoadCommand], report: WorkerReport, *, idle: bool) -> None:
        """Start this step's loads and finish what has been copied. Never raises."""
        for command in commands:
            self._in_flight.begin(command)
        try:
            self._copied += self._in_flight.take_ended(self._ranks.all_true, idle=idle)
        except Exception:
            logger.warning("SemBlend could not follow its copies", exc_info=True)
        self._finish(self._due(idle=idle), report)

    def cancel(self, reason: str) -> None:
        """The donors are no longer what they were: loads that are under way fail."""
        self._in_flight.cancel(reason)
        for load in self._copied:
            load.cancelled = reason

    def wait(self) -> None:
        """Wait until nothing is being copied."""
        self._in_flight.wait()

    def take_bad_blocks(self) -> set[int]:
        """Blocks of loads that failed since the last call."""
        bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def take_received(self) -> set[str]:
        """Requests whose loads have ended since the last call, well or not."""
        received, self._received = self._received, set()
        return received

    def close(self) -> None:
        """Wait for the copies under way."""
        self._in_flight.close()

    # -- in order ----------------------------------------------------------------------

    def _copy_spans(self, command: LoadCommand) -> None:
        if command.refused:
            raise DonorError(command.refused)
        if (command.holes or command.refine) and self._nested is None:
            raise DonorError("holes, and no model to compute them with")
        self._loader.load(command)

    def _due(self, *, idle: bool) -> list[InFlight]:
        """The loads whose turn it is: all of them, or what a busy step has room for."""
        due, room = 0, self._busy_tokens
        for load in self._copied:
            room -= load.command.tokens_to_compute
            if due and room < 0 and not idle:
                break
            due += 1
        taken, self._copied = self._copied[:due], self._copied[due:]
        return taken

    def _finish(self, loads: list[InFlight], report: WorkerReport) -> None:
        if not loads:
            return
        started = time.perf_counter()
        commands = [load.command for load in loads]
        copies = {load.command.request_id: load for load in loads}

        def checked(command: LoadCommand) -> LoadCommand:
            copies[command.request_id].check()
            return command

        try:
            copied = self._together(commands, checked, report)
            good = self._computed(self._refined(copied, report), report)
            for command in good:
                report.loaded[command.request_id] += 1
                self._received.add(command.request_id)
        except Exception as error:
            logger.warning("SemBlend could not carry out a step's loads", exc_info=True)
            self._fail_all(commands, error, report)
        report.load_ms += sum(load.copy_ms for load in loads)
        report.nested_ms += (time.perf_counter() - started) * 1e3

    def _refined(self, commands: Sequence[LoadCommand], report: WorkerReport) -> list[LoadCommand]:
        """The loads with what their policies add, one after another."""
        kept: list[LoadCommand] = []
        for command in commands:
            if command.refine is None:
                kept.append(command)
            else:
                kept += self._probed(command, command.refine, report)
        return kept

    def _probed(self, command: LoadCommand, plan: Plan, report: WorkerReport) -> list[LoadCommand]:
        nested = self._nested
        if nested is None:
            raise DonorError("no model to ask")  # the spans would not have been copied
        laid_out: list[LoadProbe] = []

        def lay_out(command: LoadCommand) -> LoadCommand:
            laid_out.append(LoadProbe(command, plan, self._access))
            return command

        def refine(command: LoadCommand) -> LoadCommand:
            return laid_out[0].refined(nested, self._ranks.summed)

        kept = self._together(self._together([command], lay_out, report), refine, report)
        for command in kept:
            report.refined[command.request_id] = command.reused_tokens
        return kept

    def _computed(self, commands: list[LoadCommand], report: WorkerReport) -> list[LoadCommand]:
        """The loads whose holes were computed: all in one pass, or none."""
        nested = self._nested
        if nested is None:
            return commands
        sequences: dict[str, list[VirtualSequence]] = {}

        def lay_out(command: LoadCommand) -> LoadCommand:
            laid_out = sequences_of(command, command.holes)
            if laid_out:
                reach(FaultPoint.NESTED_PASS)
            sequences[command.request_id] = laid_out
            return command

        good = self._together(commands, lay_out, report)
        failure: LoadFailure | None = None
        try:
            nested.run([item for command in good for item in sequences[command.request_id]])
        except Exception as error:
            logger.warning("SemBlend's nested pass failed", exc_info=True)
            failure = _failure(error)
        if self._ranks.all_true([failure is None]) == [True]:
            return good
        for command in good:
            self._fail(command, failure or _FAILED_ELSEWHERE, report)
        return []

    # -- failing -----------------------------------------------------------------------

    def _together(
        self,
        commands: Sequence[LoadCommand],
        attempt: Callable[[LoadCommand], LoadCommand],
        report: WorkerReport,
    ) -> list[LoadCommand]:
        """Attempt something with each load; what became of those with which all ranks succeeded.

        A pass has collectives and is run by all ranks or by none, so everything that may fail
        on one of them is agreed on first.
        """
        if not commands:
            return []
        results: list[LoadCommand] = []
        failures: list[LoadFailure | None] = []
        for command in commands:
            try:
                results.append(attempt(command))
                failures.append(None)
            except Exception as error:
                logger.debug("SemBlend load failed", exc_info=True)
                results.append(command)
                failures.append(_failure(error))
        fine = self._ranks.all_true([failure is None for failure in failures])
        for command, failure, good in zip(results, failures, fine, strict=True):
            if not good:
                self._fail(command, failure or _FAILED_ELSEWHERE, report)
        return [command for command, good in zip(results, fine, strict=True) if good]

    def _fail_all(
        self, commands: Sequence[LoadCommand], error: Exception, report: WorkerReport
    ) -> None:
        for command in commands:
            if command.request_id not in self._received:
                self._fail(command, _failure(error), report)

    def _fail(self, command: LoadCommand, failure: LoadFailure, report: WorkerReport) -> None:
        """Report the claimed blocks: nobody else has them, and no step counted on them yet."""
        self._bad_blocks.update(command.claimed_blocks(self._access.block_size))
        report.failed[command.request_id] = failure
        self._received.add(command.request_id)


_FAILED_ELSEWHERE = LoadFailure(
    reason=DeclineReason.MATERIALISATION_FAILED.value, detail="failed on another rank"
)


def _failure(error: Exception) -> LoadFailure:
    if isinstance(error, DonorLostError):
        return LoadFailure(
            reason=DeclineReason.DONOR_GONE.value, detail=str(error), donor_id=error.donor_id
        )
    return LoadFailure(
        reason=DeclineReason.MATERIALISATION_FAILED.value,
        detail=f"{type(error).__name__}: {error}",
    )
