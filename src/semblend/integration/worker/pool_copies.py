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
from semblend.kv.paged_kv import PagedKv
from semblend.kv.rotary_table import RotaryTable
from semblend.kv.transfer import SpanCopy, copy_spans
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

        Raises
        ------
        DonorsLostError
            If a donor holds other tokens than were planned.
        """
        for span in plan.copies:
            check_tokens(span, tokens, donors[span.donor_id].tokens)
        start, parts = plan.exact_tokens, [*(donor.slots for donor in donors.values()), slots]
        edges = np.cumsum([len(part) for part in parts])[:-1]
        # Plans are checked on the host: all slots are brought there at once.
        *lent, own = np.split(torch.cat(parts).cpu().numpy(), edges)
        theirs = dict(zip(donors, lent, strict=True))
        spans = [
            SpanCopy(
                source=self.pool,
                source_slots=theirs[span.donor_id][span.donor_start : span.donor_end],
                target_slots=own[span.target_start - start : span.target_end - start],
                source_start=span.donor_start,
                target_start=span.target_start,
            )
            for span in plan.copies
        ]
        copied = self.copy(spans, drift_for(policy_from_spec(plan.policy), self._drift))
        if copied != plan.reused_tokens:
            raise DonorError(f"{plan.reused_tokens} tokens planned, {copied} copied")

    @torch.inference_mode()
    def copy(self, spans: Sequence[SpanCopy], drift: DepthDrift | None = None) -> int:
        """Copy spans of the pool, shifted to their new depths; returns the tokens copied."""
        with self._on_forward_stream():
            return copy_spans(self.pool, spans, self._table, drift=drift)

    def wait(self) -> None:
        """Let the current stream wait for what was queued. Called before K/V is read."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def _on_forward_stream(self) -> AbstractContextManager[Any]:
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._stream)


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
