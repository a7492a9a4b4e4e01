"""Copies inside an engine's own pool: from donors' slots to a request's own, K re-rotated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from semblend.core.errors import DonorError
from semblend.core.plan import Plan, Span
from semblend.core.tokens import TokenArray
from semblend.integration.provider import DonorsLostError
from semblend.kv.depth_drift import DepthDrift
from semblend.kv.layout import SlotArray
from semblend.kv.paged_kv import PagedKv
from semblend.kv.rotary_table import RotaryTable
from semblend.kv.span_batch import SpanCopy
from semblend.kv.transfer import copy_spans
from semblend.planning.depth import drift_for
from semblend.planning.policies.base import policy_from_spec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DonorSlots:
    """A donor whose K/V is in the pool and stays there for now."""

    tokens: TokenArray
    slots: torch.Tensor
    """int64 [tokens from position 0 on, as far as a plan reaches]."""


class PoolCopies:
    """Copies for one pool. K that does not move is copied bit for bit."""

    def __init__(
        self,
        pool: PagedKv,
        table: RotaryTable,
        *,
        drift: DepthDrift | None = None,
        stream: Any = None,
    ) -> None:
        """Copy in `pool`.

        Parameters
        ----------
        drift
            What policies that shift depths go by.
        stream
            The stream of the engine's forwards, on a GPU: copies are queued behind those that
            wrote the donors, so nobody can overwrite a donor's slot before it is copied.
        """
        self.pool = pool
        self._device = pool.device
        self._table = table.to(self._device)
        self._drift = None if drift is None else drift.to(self._device)
        self._stream = stream

    def place(
        self,
        plan: Plan,
        tokens: TokenArray,
        donors: Mapping[str, DonorSlots],
        slots: torch.Tensor,
        *,
        continued: torch.Tensor | None = None,
    ) -> None:
        """Put a plan's spans in place.

        Parameters
        ----------
        tokens
            The prompt's.
        donors
            Every donor of the plan.
        slots
            The request's own, int64 [region]; the first is that of the first token that the
            exact prefix does not have.
        continued
            Where the chain that the plan continues has its K/V, int64 [continued tokens].

        Raises
        ------
        DonorsLostError
            If a donor holds other tokens than were planned.
        """
        for span in plan.copies:
            check_tokens(span, tokens, donors[span.donor_id].tokens)
        chain = slots[:0] if continued is None else continued
        lists = [*(donor.slots for donor in donors.values()), chain, slots]
        firsts = np.cumsum([0, *map(len, lists)])
        *theirs, chained, own = (int(first) for first in firsts[:-1])
        first_of, start = dict(zip(donors, theirs, strict=True)), plan.exact_tokens
        # Source and target in the lists, tokens, and the positions moved between.
        runs = [
            (
                first_of[span.donor_id] + span.donor_start,
                own + span.target_start - start,
                span.length,
                span.donor_start,
                span.target_start,
            )
            for span in plan.copies
        ]
        if len(chain):
            runs.append((chained, own, len(chain), start, start))
        copied = self.copy(
            [
                SpanCopy(
                    source=self.pool,
                    source_slots=_run(source, length),
                    target_slots=_run(target, length),
                    source_start=source_start,
                    target_start=target_start,
                )
                for source, target, length, source_start, target_start in runs
            ],
            drift_for(policy_from_spec(plan.policy), self._drift),
            lookup=torch.cat(lists),
        )
        planned = plan.reused_tokens + plan.continued_tokens
        if copied != planned:
            raise DonorError(f"{planned} tokens planned, {copied} copied")

    @torch.inference_mode()
    def copy(
        self,
        spans: Sequence[SpanCopy],
        drift: DepthDrift | None = None,
        *,
        lookup: torch.Tensor | None = None,
    ) -> int:
        """Copy spans of the pool, shifted to their new depths; returns the tokens copied.

        With `lookup` their slots are places in it, as in `copy_spans`. A scheduler's stream waits
        for the forward that is under way, so reading slots here would stop the scheduler.
        """
        with self._on_forward_stream():
            if lookup is not None and self._stream is not None:
                lookup.record_stream(self._stream)  # made on another stream
            return copy_spans(self.pool, spans, self._table, drift=drift, lookup=lookup)

    def wait(self) -> None:
        """Let the current stream wait for what was queued. Called before K/V is read."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def _on_forward_stream(self) -> AbstractContextManager[Any]:
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._stream)


def _run(first: int, length: int) -> SlotArray:
    return np.arange(first, first + length, dtype=np.int64)


def check_tokens(span: Span, tokens: TokenArray, donors: TokenArray) -> None:
    """Compare a span's tokens once more with the donor that is really there.

    Raises
    ------
    DonorsLostError
        If they differ.
    """
    theirs = donors[span.donor_start : span.donor_end]
    if not np.array_equal(theirs, tokens[span.target_start : span.target_end]):
        raise DonorsLostError([span.donor_id], f"{span.donor_id} holds other tokens")
