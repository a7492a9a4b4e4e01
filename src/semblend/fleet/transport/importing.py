"""Fetches donors from the shared store if that is expected to be faster than computing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from semblend.core.errors import SemBlendError, StorageError
from semblend.core.namespace import Namespace
from semblend.core.tokens import TokenArray
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.index import SharedDonor
from semblend.fleet.keys import FleetKeys
from semblend.fleet.placement.expected_time import FleetCost
from semblend.fleet.sketch import DEFAULT_SAMPLING, sketch
from semblend.fleet.transport.exporting import ADOPTED_PREFIX
from semblend.fleet.transport.payload import (
    decode_manifest,
    decode_segment,
    manifest_name,
    segment_name,
)
from semblend.fleet.transport.store import ObjectStore
from semblend.kv.segments import Segment, SegmentKey

logger = logging.getLogger("semblend.fleet")


class AdoptingLibrary(Protocol):
    """A library that accepts donors computed elsewhere."""

    def adopt(
        self,
        donor_id: str,
        tokens: TokenArray,
        namespace: Namespace,
        read: Callable[[SegmentKey], Segment],
    ) -> bool:
        """Keep a donor whose segments `read` returns."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """The result of looking for a donor elsewhere."""

    fetched: bool
    reason: str
    tokens: int = 0
    seconds: float = 0.0


class DonorImporter:
    """Fetches the best shared donor of a prompt before the prompt is planned.

    Never raises: if anything fails, the prompt is computed as if there were no fleet.
    """

    def __init__(
        self,
        library: AdoptingLibrary,
        store: ObjectStore,
        directory: Directory,
        *,
        worker_id: str,
        secret: bytes,
        cost: FleetCost,
        sampling: int = DEFAULT_SAMPLING,
    ) -> None:
        self._library = library
        self._store = store
        self._directory = directory
        self._worker_id = worker_id
        self._secret = secret
        self._cost = cost
        self._sampling = sampling
        self._locks: dict[int, threading.Lock] = {}
        self._lock = threading.Lock()
        self.fetched = 0
        self.failed = 0

    def prepare(self, tokens: TokenArray, namespace: Namespace) -> Fetch:
        """Fetch a donor for this prompt if that pays. Blocks meanwhile."""
        started = time.perf_counter()
        try:
            keys = FleetKeys.of(namespace, self._secret)
            shared = self._wanted(tokens, keys)
            if isinstance(shared, str):
                return Fetch(fetched=False, reason=shared)
            with self._only_one(shared.donor_key):
                again = self._wanted(tokens, keys)
                if isinstance(again, str):
                    return Fetch(fetched=False, reason=again)
                self._fetch(shared, keys, namespace)
        except Exception as error:
            self.failed += 1
            logger.info("a shared donor could not be used: %s", error)
            return Fetch(fetched=False, reason=f"{type(error).__name__}: {error}")
        self.fetched += 1
        seconds = time.perf_counter() - started
        return Fetch(fetched=True, reason="fetched", tokens=shared.token_count, seconds=seconds)

    def _wanted(self, tokens: TokenArray, keys: FleetKeys) -> SharedDonor | str:
        """The donor to fetch, or the reason for fetching none."""
        found = self._directory.lookup(
            sketch(tokens, keys, sampling=self._sampling), keys.namespace_id
        )
        shared = found.shared
        if shared is None:
            return "no shared donor"
        mine = [held for held in found.holdings if held.worker_id == self._worker_id]
        local = max((held.covered_tokens for held in mine), default=0)
        prefix = max((held.prefix_tokens for held in mine), default=0)
        here = self._cost.prefill_s(len(tokens), prefix, local)
        there = self._cost.prefill_s(len(tokens), prefix, max(local, shared.covered_tokens))
        move = self._cost.transfer_s(shared.token_count)
        if there + move >= here - self._cost.min_gain_s:
            return (
                f"not worth it: {here * 1e3:.1f} ms here, {there * 1e3:.1f} ms and "
                f"{move * 1e3:.1f} ms of transfer with it"
            )
        return shared

    def _fetch(self, shared: SharedDonor, keys: FleetKeys, namespace: Namespace) -> None:
        data = self._store.get(manifest_name(shared.donor_key, keys))
        if data is None:
            raise StorageError("the donor was withdrawn")
        donor_tokens = decode_manifest(data)

        def read(key: SegmentKey) -> Segment:
            stored = self._store.get(segment_name(key, keys))
            if stored is None:
                raise StorageError("a segment of the donor was withdrawn")
            return decode_segment(stored, key)

        donor_id = f"{ADOPTED_PREFIX}{shared.donor_key:016x}.{time.monotonic_ns():x}"
        if not self._library.adopt(donor_id, donor_tokens, namespace, read):
            raise SemBlendError("no room for the donor")

    def _only_one(self, key: int) -> threading.Lock:
        """Allow one fetch of a donor at a time; whoever waited then finds it here."""
        with self._lock:
            if len(self._locks) > 4096:
                self._locks = {k: lock for k, lock in self._locks.items() if lock.locked()}
            return self._locks.setdefault(key, threading.Lock())
