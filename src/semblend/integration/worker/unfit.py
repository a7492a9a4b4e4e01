"""A rank that was not found fit at start: it fails every order at once, and says why.

The engine computes what was claimed, as after any load that fails; the scheduler claims and keeps
nothing once it has read the first report.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

import torch

from semblend.core.errors import SettingsError
from semblend.core.outcomes import DeclineReason
from semblend.core.tokens import TokenArray
from semblend.integration.scheduler.orders import LoadFailure, StepOrders, WorkerReport
from semblend.integration.worker.port import Ranks
from semblend.integration.worker.side import WorkerSide

logger = logging.getLogger("semblend.adapter")


class UnfitWorker:
    """Answers for a worker side that could not be set up."""

    def __init__(self, reason: str, *, block_size: int) -> None:
        self.reason = reason
        self._block_size = block_size
        self._held: set[str] = set()
        self._received: set[str] = set()
        self._bad_blocks: set[int] = set()
        self._report = WorkerReport()

    def weights_changed(self, how: str) -> None:
        """Nothing: there are no donors."""

    def engine_ready(self) -> None:
        """Nothing: there is nothing to measure."""

    def before_unmapping(self) -> None:
        """Nothing: nobody uses the K/V cache."""

    def kv_of_donor(self, tokens: TokenArray) -> torch.Tensor | None:
        """None: no donor is held."""
        return None

    def before_overwrite(self, meta: StepOrders) -> None:
        """Nothing: nobody copies."""

    def start_step(self, meta: StepOrders) -> None:
        """Take this step's orders, and fail them where there is no forward."""
        self._held.update(meta.held)
        if meta.idle:
            self._fail(meta)

    def after_forward(self, meta: StepOrders) -> None:
        """Fail this step's orders."""
        if not meta.idle:
            self._fail(meta)

    def _fail(self, meta: StepOrders) -> None:
        for load in meta.loads:
            self._received.add(load.request_id)
            self._bad_blocks.update(load.claimed_blocks(self._block_size))
            self._report.failed[load.request_id] = LoadFailure(
                reason=DeclineReason.UNSUPPORTED.value, detail=self.reason
            )
        for donor_id in (
            *(capture.donor_id for capture in meta.captures),
            *(fetch.donor_id for fetch in meta.fetches),
        ):
            self._report.rejected[donor_id] = self.reason
            self._report.answered[donor_id] += 1
        self._report.shadow_failed.update(order.sample_id for order in meta.shadows)

    def take_bad_blocks(self) -> set[int]:
        """Blocks of loads that were ordered."""
        taken, self._bad_blocks = self._bad_blocks, set()
        return taken

    def take_received(self) -> set[str]:
        """Requests whose loads were ordered."""
        taken, self._received = self._received, set()
        return taken

    def take_freed(self) -> set[str]:
        """Finished requests whose blocks waited for a capture."""
        taken, self._held = self._held, set()
        return taken

    def take_report(self) -> WorkerReport:
        """What was ordered, all of it failed."""
        taken, self._report = self._report, WorkerReport()
        taken.unfit = self.reason
        return taken

    def close(self) -> None:
        """Nothing to stop."""


AnyWorker: TypeAlias = WorkerSide | UnfitWorker


def prepared(
    side: WorkerSide,
    step: Callable[[], object],
    ranks: Ranks,
    *,
    block_size: int,
    strict: bool,
) -> AnyWorker:
    """Carry out a step of a worker's start: on every rank, or none of them is fit.

    Loads have collectives, so ranks agree here. Every rank calls this at the same point.

    Raises
    ------
    SettingsError
        If an option or a setting is wrong.
    Exception
        Whatever `step` raised, if `strict`.
    """
    reason = ""
    try:
        step()
    except SettingsError:
        raise
    except Exception as error:
        if strict:
            raise
        reason = f"{type(error).__name__}: {error}"
    if all(ranks.all_true([not reason])):
        return side
    reason = reason or "another rank is not fit"
    logger.warning(
        "SemBlend loads nothing in this engine: %s. Every prompt is computed; "
        "SEMBLEND_STRICT_START=1 does not start instead.",
        reason,
    )
    side.close()
    return UnfitWorker(reason, block_size=block_size)
