"""Puts a load's spans in place: donor K/V into the request's own blocks, K re-rotated.

A load is begun, placed and finished. Beginning leases the donors, starts the first copies from
the host and computes checksums on threads; placing puts layers into the request's blocks, all
at once or each before it is needed; finishing waits for the checksums. An unfinished load does
not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from semblend.core.errors import DonorError
from semblend.core.faults import FaultPoint, reach
from semblend.integration.scheduler.orders import LoadCommand
from semblend.integration.worker.donors import WorkerDonors
from semblend.integration.worker.loads_in_flight import LayerArrivals
from semblend.integration.worker.pool_proof import prove_pool
from semblend.integration.worker.port import KvAccess
from semblend.kv.checking import Checking
from semblend.kv.depth_drift import DepthDrift, read_table
from semblend.kv.donor_pieces import CopiedRun, add_runs, extent
from semblend.kv.in_flight import IN_FLIGHT
from semblend.kv.layer_rotary import Rotary
from semblend.kv.layerwise import ALL_DIRECT, DIRECT_SHARE, LayerwiseLoad, chunk_layers
from semblend.kv.layout import SlotArray, block_slots
from semblend.kv.numbers import is_fp8
from semblend.kv.span_batch import CopyBatch, CopyRuns

_STAGED_BYTES = 512 << 20
"""Roughly how much device memory a load takes in addition to the cache."""


class SpanLoad:
    """One command's copies in progress. One thread calls it; closing is idempotent."""

    def __init__(
        self,
        load: LayerwiseLoad,
        leases: ExitStack,
        checks: Mapping[str, Checking],
        *,
        device: torch.device,
    ) -> None:
        self._load = load
        self._leases = leases
        self._checks = checks
        self._device = device
        self._passed: Any = None
        self._placed = self._closed = False

    @property
    def tokens(self) -> int:
        """Tokens that are copied."""
        return self._load.tokens

    @torch.inference_mode()
    def place_all(self) -> LayerArrivals | None:
        """Queue all layers on the stream that the load was begun on, the current one.

        Says when each is in place, None on a CPU.
        """
        events = []
        for end in self._load.ends:
            self._load(end - 1)
            if self._device.type == "cuda":
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record(torch.cuda.current_stream(self._device))
                events.append(event)
        reach(FaultPoint.COPY)
        self._placed = True
        if not events:
            return None
        self._passed = events[-1]
        return LayerArrivals(self._load.ends, tuple(events))

    @property
    def is_done(self) -> bool:
        """Whether all layers are in place and :meth:`finish` would not wait."""
        arrived = self._placed and (self._passed is None or bool(self._passed.query()))
        return arrived and all(checking.done for checking in self._checks.values())

    def finish(self) -> int:
        """Wait for the checksums and release the donors; returns the tokens copied.

        Raises
        ------
        DonorLostError
            Naming the donor whose K/V is corrupt: what was placed must not be used.
        """
        try:
            for donor_id, checking in self._checks.items():
                try:
                    sound = checking.is_sound()
                except Exception as error:
                    raise DonorLostError(donor_id, f"not checked: {error}") from error
                if not sound:
                    raise DonorLostError(
                        donor_id, f"donor {donor_id!r} is corrupt: its checksum fails"
                    )
        finally:
            self.close()
        return self.tokens

    def close(self) -> None:
        """Release the donors once the device has read them."""
        if self._closed:
            return
        self._closed = True
        for checking in self._checks.values():
            checking.wait()
        if self._device.type != "cuda":
            self._leases.close()
            return
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        # Copies ahead of what was placed run on the side stream, which keeps its sources itself.
        event.record(torch.cuda.current_stream(self._device))
        IN_FLIGHT.hold(event, self._load, then=self._leases.close)


class SpanLoader:
    """Copies spans into the paged cache. K that does not move is copied bit for bit."""

    def __init__(
        self,
        access: KvAccess,
        donors: WorkerDonors,
        table: Rotary,
        *,
        rank: tuple[int, int] = (0, 1),
    ) -> None:
        """`rank`, and of how many: decides which of the model's K/V heads this worker holds."""
        self._access = access
        self._rank = rank
        self._donors = donors
        self._table = table.to(access.device)
        prove_pool(access, self._table)
        self._drifts: dict[str, DepthDrift] = {}
        self._clipped = 0
        self._stream: torch.cuda.Stream | None = None
        if access.device.type == "cuda":
            self._stream = torch.cuda.Stream(access.device)  # type: ignore[no-untyped-call]

    @torch.inference_mode()
    def begin(self, command: LoadCommand) -> SpanLoad:
        """Lease a command's donors, start the first copies and the checks; nothing waits.

        Tokens are compared once more with the donor actually stored: between
        planning and loading, its id may have been reassigned.

        Raises
        ------
        DonorLostError
            Naming the donor that is gone or does not hold what was planned; no lease is kept.
        """
        IN_FLIGHT.sweep()
        drift = self._drift(command.depth_table)
        wanted: dict[str, list[CopiedRun]] = {}
        for span in command.copies:
            run = CopiedRun(span.donor_start, span.donor_end, span.delta)
            wanted.setdefault(span.donor_id, []).append(run)
        runs, checks = CopyRuns(), {}
        with ExitStack() as leases:
            for donor_id, parts in wanted.items():
                try:
                    donor = leases.enter_context(
                        self._donors.lease_unchecked(donor_id, *extent(parts))
                    )
                    add_runs(runs, donor_id, donor, parts, command.tokens)
                except DonorError as error:
                    raise DonorLostError(donor_id, str(error)) from error
                checks[donor_id] = donor.checks
            batch = runs.batch(self._slots(command))
            if len(batch) != command.reused_tokens:
                raise DonorError(
                    f"{command.reused_tokens} tokens planned, donors supplied {len(batch)}"
                )
            load = self._started(batch, drift)
            checking = {donor_id: Checking(each) for donor_id, each in checks.items()}
            return SpanLoad(load, leases.pop_all(), checking, device=self._access.device)

    def take_clipped(self) -> int:
        """Numbers of moved K clipped since the last call, of loads that have ended at least."""
        if self._access.clipped is None:
            return 0
        # On a stream of our own: the engine's has work queued that need not be waited for.
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            total = int(self._access.clipped.item())
        taken, self._clipped = total - self._clipped, total
        return taken

    def _slots(self, command: LoadCommand) -> SlotArray:
        """Slots of the prompt's positions; none before the first span, whose blocks others fill."""
        start = min((span.target_start for span in command.copies), default=0)
        end = max((span.target_end for span in command.copies), default=0)
        access = self._access
        behind = block_slots(
            command.block_ids, start, end, block_size=access.block_size, blocks=access.blocks
        )
        return np.concatenate([np.full(start, -1, dtype=np.int64), behind])

    def _started(self, batch: CopyBatch, drift: DepthDrift | None) -> LayerwiseLoad:
        access = self._access
        layer_bytes = len(batch) * access.token_bytes // max(1, access.layer_count)
        return LayerwiseLoad(
            access.destination,
            batch,
            self._table,
            drift=drift,
            stream=self._stream,
            # Without a bus, an intermediate copy gains nothing.
            direct_share=DIRECT_SHARE if self._stream is not None else ALL_DIRECT,
            most_layers=chunk_layers(layer_bytes=layer_bytes, staged_bytes=_STAGED_BYTES),
        )

    def _drift(self, path: str) -> DepthDrift | None:
        """This rank's heads of the depth-drift table at `path`; None without a path."""
        if not path:
            return None
        if is_fp8(self._access.dtype):
            raise DonorError("depth drift was measured in the model's number format, not in fp8")
        if path not in self._drifts:
            access, (rank, ranks) = self._access, self._rank
            table = read_table(Path(path)).of_rank(
                layers=access.layer_count - access.draft_layers,
                kv_heads=access.kv_heads,
                rank=rank,
                ranks=ranks,
            )
            table = table.with_still_layers(access.draft_layers)
            self._drifts[path] = table.to(access.device)
        return self._drifts[path]


class DonorLostError(DonorError):
    """A donor that a plan relies on cannot supply it."""

    def __init__(self, donor_id: str, message: str) -> None:
        super().__init__(message)
        self.donor_id = donor_id
