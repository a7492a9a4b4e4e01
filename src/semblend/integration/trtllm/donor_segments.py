"""Donor K/V on one rank: segments on the host, kept until the leader says otherwise.

Nothing is evicted here. Prompts that begin alike share segments; a segment goes with the
last donor that has it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch

from semblend.core.errors import DonorError
from semblend.core.faults import FaultPoint, reach
from semblend.core.tokens import TokenArray
from semblend.integration.worker.donors import segment_keys
from semblend.kv.donor_pieces import DonorKv, DonorPiece
from semblend.kv.segments import SegmentKey


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Donor:
    tokens: TokenArray
    keys: tuple[SegmentKey, ...]


class DonorSegments:
    """Which donors this rank holds. A donor is whole or not here. Thread-safe."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._donors: dict[str, _Donor] = {}
        self._segments: dict[bytes, torch.Tensor] = {}
        self._users: dict[bytes, int] = {}
        self._lock = threading.Lock()
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._donors)

    def __contains__(self, donor_id: str) -> bool:
        return donor_id in self._donors

    def missing(self, share_key: bytes, tokens: TokenArray) -> tuple[SegmentKey, ...]:
        """Segments of a prompt that nobody here has yet."""
        with self._lock:
            return tuple(
                key for key in segment_keys(share_key, tokens) if key.digest not in self._segments
            )

    def keep(
        self,
        donor_id: str,
        share_key: bytes,
        tokens: TokenArray,
        read: dict[bytes, torch.Tensor],
    ) -> None:
        """Take a donor whose missing segments were read: [layers, 2, tokens, heads, head_dim].

        Raises
        ------
        DonorError
            If a segment is missing, or there is no room (the leader counts bytes; that
            this happens means that it counted otherwise).
        """
        keys = segment_keys(share_key, tokens)
        with self._lock:
            new = {key.digest: read[key.digest] for key in keys if key.digest in read}
            have = self._segments.keys() | new.keys()
            if any(key.digest not in have for key in keys):
                raise DonorError(f"donor {donor_id!r}: a segment it shares has gone meanwhile")
            added = sum(kv.nbytes for name, kv in new.items() if name not in self._segments)
            if self.used_bytes + added > self._capacity:
                raise DonorError(f"donor {donor_id!r}: no room for {added} bytes")
            for name, kv in new.items():
                if name not in self._segments:
                    self._segments[name] = kv
                    self.used_bytes += kv.nbytes
            for key in keys:
                self._users[key.digest] = self._users.get(key.digest, 0) + 1
            self._donors[donor_id] = _Donor(tokens=tokens, keys=keys)

    def donor(self, donor_id: str) -> DonorKv:
        """A donor's tokens and K/V.

        Raises
        ------
        DonorError
            If the donor is not here.
        """
        reach(FaultPoint.LEASE)
        with self._lock:
            donor = self._donors.get(donor_id)
            if donor is None:
                raise DonorError(f"donor {donor_id!r} is not here")
            pieces = tuple(
                DonorPiece(start=key.start, kv=self._segments[key.digest]) for key in donor.keys
            )
        return DonorKv(tokens=donor.tokens, pieces=pieces)

    def drop(self, donor_id: str) -> None:
        """Let go of a donor; unknown ids are no error."""
        with self._lock:
            donor = self._donors.pop(donor_id, None)
            for key in donor.keys if donor is not None else ():
                self._users[key.digest] -= 1
                if not self._users[key.digest]:
                    del self._users[key.digest]
                    self.used_bytes -= self._segments.pop(key.digest).nbytes

    def clear(self) -> None:
        """Let go of all donors."""
        for donor_id in list(self._donors):
            self.drop(donor_id)
