"""Putting a load's spans in place: donor K/V into the request's own blocks, K re-rotated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from semblend.core.errors import DonorError
from semblend.core.faults import FaultPoint, fault_point
from semblend.core.plan import Span
from semblend.integration.key_turns import KeyTurn
from semblend.integration.vllm.donors import DonorKv, WorkerDonors
from semblend.integration.vllm.metadata import LoadCommand
from semblend.integration.vllm.paged_access import PagedAccess
from semblend.kv.depth_drift import DepthDrift, read_table
from semblend.kv.rotary_table import RotaryTable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Copy:
    """Tokens from one piece of a donor, to consecutive target positions."""

    kv: torch.Tensor
    """[layers, 2, tokens, kv_heads, head_dim], a view of the stored segment."""
    donor_start: int
    target_start: int

    @property
    def tokens(self) -> int:
        return int(self.kv.shape[2])


class SpanLoader:
    """Copies spans into the paged cache. K that does not move is copied bit for bit."""

    def __init__(
        self,
        access: PagedAccess,
        donors: WorkerDonors,
        table: RotaryTable,
        *,
        rank: tuple[int, int] = (0, 1),
    ) -> None:
        """`rank`, of how many: which of the model's K/V heads this worker holds."""
        self._access = access
        self._rank = rank
        self._donors = donors
        self._table = table.to(access.device)
        self._drifts: dict[str, DepthDrift] = {}

    @torch.inference_mode()
    def load(self, command: LoadCommand) -> int:
        """Put everything in place that a command copies; returns the tokens copied.

        Tokens are compared once more with the donor that is really here: between
        planning and loading, an id may have come to mean something else.

        Raises
        ------
        DonorLostError
            Naming the donor that is gone or does not hold what was planned.
        """
        copied, drift = 0, self._drift(command.depth_table)
        by_donor: dict[str, list[Span]] = {}
        for span in command.copies:
            by_donor.setdefault(span.donor_id, []).append(span)
        for donor_id, spans in by_donor.items():
            first = min(span.donor_start for span in spans)
            last = max(span.donor_end for span in spans)
            try:
                with self._donors.lease(donor_id, first, last) as donor:
                    _check_tokens(donor_id, donor, spans, command)
                    for copy in _copies(donor, spans):
                        self._copy(copy, command.block_ids, drift)
                        copied += copy.tokens
            except DonorError as error:
                raise DonorLostError(donor_id, str(error)) from error
        if copied != command.reused_tokens:
            raise DonorError(f"{command.reused_tokens} tokens planned, donors supplied {copied}")
        return copied

    @fault_point(FaultPoint.COPY, after=True)
    def _copy(self, copy: _Copy, block_ids: Sequence[int], drift: DepthDrift | None) -> None:
        access, count, target = self._access, copy.tokens, copy.target_start
        slots = access.slots(block_ids, target, target + count)
        source = copy.kv.to(access.device, non_blocking=True)
        turn = KeyTurn(self._table, donor_start=copy.donor_start, target_start=target, tokens=count)
        move = drift and drift.move(
            source_start=copy.donor_start, target_start=target, tokens=count, rotary=self._table
        )
        for layer in range(len(access.layers)):
            keys, values = turn(source[layer, 0]), source[layer, 1]
            if move:
                keys, values = move.keys(layer, keys), move.values(layer, values)
            access.write(layer, keys, values, slots)

    def _drift(self, path: str) -> DepthDrift | None:
        """The table of depth drift at `path`, this rank's heads of it; none for no path."""
        if not path:
            return None
        if path not in self._drifts:
            access, (rank, ranks) = self._access, self._rank
            table = read_table(Path(path)).of_rank(
                layers=len(access.layers), kv_heads=access.kv_heads, rank=rank, ranks=ranks
            )
            self._drifts[path] = table.to(access.device)
        return self._drifts[path]


class DonorLostError(DonorError):
    """A donor that a plan relies on cannot supply it."""

    def __init__(self, donor_id: str, message: str) -> None:
        super().__init__(message)
        self.donor_id = donor_id


def _check_tokens(
    donor_id: str, donor: DonorKv, spans: Sequence[Span], command: LoadCommand
) -> None:
    for span in spans:
        theirs = donor.tokens[span.donor_start : span.donor_end]
        if not np.array_equal(theirs, command.tokens[span.target_start : span.target_end]):
            raise DonorError(f"donor {donor_id!r} does not hold the planned tokens")


def _copies(donor: DonorKv, spans: Sequence[Span]) -> Iterator[_Copy]:
    """The spans cut where the donor's pieces are."""
    for span in spans:
        for piece in donor.pieces:
            start, end = max(span.donor_start, piece.start), min(span.donor_end, piece.end)
            if start < end:
                yield _Copy(
                    kv=piece.kv[:, :, start - piece.start : end - piece.start],
                    donor_start=start,
                    target_start=start + span.delta,
                )
