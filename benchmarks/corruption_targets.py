"""What can be corrupted, and how the product reads it: one class per stored or sent thing."""

from __future__ import annotations

import logging
import shutil
from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

import numpy as np
import torch

from benchmarks.engine_soak import make_engine, tiny_model
from semblend.core.errors import CorruptSegmentError, SerialisationError
from semblend.engine.api import FinishReason, GenerationRequest, SamplingParams
from semblend.engine.handle import GenerationResult
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.events.codec import decode, decode_heartbeat, encode, encode_heartbeat
from semblend.fleet.events.event_values import (
    DonorRegistered,
    Event,
    EventSegment,
    GenerationReset,
    Heartbeat,
    Location,
)
from semblend.fleet.transport.payload import (
    decode_manifest,
    decode_segment,
    encode_manifest,
    encode_segment,
)
from semblend.kv.segments import Segment, SegmentKey, kv_bytes
from semblend.kv.tiers import DiskTier, MemoryTier, TierStack
from semblend.kv.tiers.segment_file import file_name as segment_file_name
from semblend.planning.certificates import MEASUREMENT_VERSION, Certificate, file_name, look_up


class ReadResult(StrEnum):
    """The result of reading something damaged."""

    DETECTED = "detected"
    SAME = "same"
    """Not detected, but what was read is what was written."""
    WRONG = "wrong"
    CRASHED = "crashed"


class Target(ABC):
    """One kind of stored thing: created, damaged from outside, read as the product does."""

    name: str
    weight: int = 4
    resizable: bool = True
    """Whether damage may change its length."""

    def fresh(self) -> bytes:
        """Create it; return the bytes as written."""
        return self._fresh()

    def read(self, bad: bytes) -> ReadResult:
        """Replace it with damaged bytes and read as the product does."""
        return self._read(bad)

    def close(self) -> None:
        self._close()

    @abstractmethod
    def _fresh(self) -> bytes: ...

    @abstractmethod
    def _read(self, bad: bytes) -> ReadResult: ...

    def _close(self) -> None:
        return None


def small_segment(number: int = 0) -> Segment:
    """A segment of one kilobyte, determined by its number."""
    tokens = np.arange(number, number + 16, dtype=np.int32)
    kv = torch.randn(2, 2, 16, 2, 4, generator=torch.Generator().manual_seed(number))
    key = SegmentKey.of(b"corruption-bench", tokens, 0, 16)
    return Segment(key=key, kv=kv.to(torch.bfloat16))


def same_segment(one: Segment, other: Segment) -> bool:
    """Whether two segments are equal in name and in every bit."""
    return one.key == other.key and bytes(kv_bytes(one.kv)) == bytes(kv_bytes(other.kv))


class KvInMemory(Target):
    """K/V damaged in host memory."""

    name = "K/V in memory"
    resizable = False

    def _fresh(self) -> bytes:
        self._tier = MemoryTier.on_host(capacity_bytes=1 << 20, pinned=False)
        self._tier.put(small_segment())
        return bytes(kv_bytes(small_segment().kv))

    def _read(self, bad: bytes) -> ReadResult:
        key = small_segment().key
        stack = TierStack([self._tier])
        with self._tier.acquire(key) as lease:  # type: ignore[union-attr]
            kv_bytes(lease.segment.kv)[:] = bad
        gone = stack.acquire(key) is None and key not in stack
        return ReadResult.DETECTED if gone else ReadResult.WRONG


class KvFile(Target):
    """A file of the disk tier, read while the tier is open or after reopening it."""

    name = "disk tier file"
    weight = 8

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "tier"
        self._reopen = False
        self._tier: DiskTier | None = None

    def _fresh(self) -> bytes:
        self._close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._tier = DiskTier(self._folder, capacity_bytes=1 << 20)
        self._tier.put(small_segment())
        self._path = self._folder / segment_file_name(small_segment().key)
        return self._path.read_bytes()

    def _read(self, bad: bytes) -> ReadResult:
        self._path.write_bytes(bad)
        self._reopen = not self._reopen
        if self._reopen:
            self._close()
            self._tier = DiskTier(self._folder, capacity_bytes=1 << 20)
        memory = MemoryTier.on_host(capacity_bytes=1 << 20, pinned=False)
        stack = TierStack([memory], self._tier)
        lease = stack.acquire(small_segment().key)
        gone = not self._path.exists() and small_segment().key not in stack
        return ReadResult.DETECTED if lease is None and gone else ReadResult.WRONG

    def _close(self) -> None:
        if self._tier is not None:
            self._tier.close()
            self._tier = None


class SharedSegment(Target):
    """A segment received from another worker."""

    name = "shared segment"

    def _fresh(self) -> bytes:
        return b"".join(bytes(part) for part in encode_segment(small_segment()))

    def _read(self, bad: bytes) -> ReadResult:
        try:
            back = decode_segment(bad, small_segment().key)
        except CorruptSegmentError:
            return ReadResult.DETECTED
        return ReadResult.SAME if same_segment(back, small_segment()) else ReadResult.WRONG


class DonorManifest(Target):
    """The list of a shared donor's tokens."""

    name = "donor manifest"
    _tokens = np.random.default_rng(0).integers(0, 50_000, 300).astype(np.int32)

    def _fresh(self) -> bytes:
        return b"".join(bytes(part) for part in encode_manifest(self._tokens))

    def _read(self, bad: bytes) -> ReadResult:
        try:
            back = decode_manifest(bad)
        except SerialisationError:
            return ReadResult.DETECTED
        return ReadResult.SAME if np.array_equal(back, self._tokens) else ReadResult.WRONG


class CertificateFile(Target):
    """A certificate in the folder where it is searched."""

    name = "certificate"

    def __init__(self, folder: Path) -> None:
        now = datetime.now(UTC)
        self._certificate = Certificate(
            model="tiny",
            fingerprint="f" * 32,
            dtype="float32",
            policy="span_head(8)",
            bound={"kl": 1e-05, "agreement": 0.98},
            figures={"kl": 3.5e-07, "agreement": 0.997, "items": 120},
            data={"seed": 7},
            versions={"measurement": str(MEASUREMENT_VERSION), "python": "3.11"},
            created=now.isoformat(),
            expires=(now + timedelta(days=30)).isoformat(),
        ).hashed()
        self._folder = folder / "certificates"
        self._folder.mkdir()
        self._path = self._folder / file_name(self._certificate)

    def _fresh(self) -> bytes:
        text = self._certificate.to_json()
        self._path.write_text(text, encoding="utf-8")
        return text.encode()

    def _read(self, bad: bytes) -> ReadResult:
        self._path.write_bytes(bad)
        standing = look_up("f" * 32, dtype="float32", folders=[self._folder])
        if standing.certificate is None:
            return ReadResult.DETECTED
        return ReadResult.SAME if standing.certificate == self._certificate else ReadResult.WRONG


def registration(number: int) -> Event:
    """A donor's registration, as a worker sends it."""
    random = np.random.default_rng(number)
    data = DonorRegistered(
        donor_id=f"d{number}",
        namespace_id="00112233445566778899aabbccddeeff",
        namespace={"model": "m", "block_size": 16},
        location=Location(worker_id="w", tier="host"),
        token_count=1024,
        generation=1,
        segments=(EventSegment(start=0, end=512, digest=int(random.integers(0, 2**62))),),
        sampling=8,
        hashes=random.integers(0, 2**62, 20).astype(np.uint64),
        embedding=(0.5, -1.25),
    )
    return Event(event_id=number + 2, worker_id="w", dp_rank=0, data=data)


class FleetEvent(Target):
    """An event of the fleet's log."""

    name = "fleet event"
    weight = 8

    def _fresh(self) -> bytes:
        return encode(registration(0))

    def _read(self, bad: bytes) -> ReadResult:
        try:
            back = decode(bad)
        except SerialisationError:
            return ReadResult.DETECTED
        return ReadResult.SAME if encode(back) == self._fresh() else ReadResult.WRONG


class FleetHeartbeat(Target):
    """A worker's heartbeat."""

    name = "heartbeat"
    weight = 2
    _beat = Heartbeat(worker_id="w", dp_rank=0, generation=123, last_event_id=456)

    def _fresh(self) -> bytes:
        return encode_heartbeat(self._beat)

    def _read(self, bad: bytes) -> ReadResult:
        try:
            back = decode_heartbeat(bad)
        except SerialisationError:
            return ReadResult.DETECTED
        return ReadResult.SAME if back == self._beat else ReadResult.WRONG


class DirectorySnapshot(Target):
    """A directory's snapshot, loaded by a new replica."""

    name = "directory snapshot"

    def __init__(self, folder: Path) -> None:
        self._path = folder / "directory"
        directory = self._directory()
        reset = Event(event_id=1, worker_id="w", dp_rank=0, data=GenerationReset(generation=1))
        directory.apply([reset, *(registration(number) for number in range(20))])
        directory.save(self._path, position=21)
        self._good = self._path.read_bytes()

    def _fresh(self) -> bytes:
        return self._good

    def _read(self, bad: bytes) -> ReadResult:
        self._path.write_bytes(bad)
        replica = self._directory()
        try:
            replica.load(self._path)
        except SerialisationError:
            return ReadResult.DETECTED if not len(replica.ranks) else ReadResult.WRONG
        return ReadResult.WRONG

    @staticmethod
    def _directory() -> Directory:
        return Directory(SketchIndex(max_donors=64, max_postings=2048))


class EngineDonor(Target):
    """A donor's K/V in a running engine: the answer stays the cold one."""

    name = "embedded engine"
    weight = 1
    resizable = False

    def __init__(self) -> None:
        self._engine = make_engine(tiny_model())
        random = np.random.default_rng(0)
        document = random.integers(3, 512, 120).astype(np.int32)
        self._donor = np.concatenate((random.integers(3, 512, 9).astype(np.int32), document))
        self._target = np.concatenate((random.integers(3, 512, 31).astype(np.int32), document, [5]))
        self._serial = 0
        self._cold = self._run(self._target, reuse=False, donate=False)
        self._run(self._donor)
        warm = self._run(self._target, donate=False)
        if not warm.report.reused_tokens:
            raise RuntimeError("the engine does not reuse, so this target would prove nothing")

    def _fresh(self) -> bytes:
        self._engine.drop_donors()
        self._engine.flush_prefix_cache()
        self._run(self._donor)
        (self._key,) = self._engine._tiers.memory[0].keys()
        with self._engine._tiers.memory[0].acquire(self._key) as lease:  # type: ignore[union-attr]
            self._memory = kv_bytes(lease.segment.kv)
        self._engine.flush_prefix_cache()
        return bytes(self._memory)

    def _read(self, bad: bytes) -> ReadResult:
        self._memory[:] = bad
        answer = self._run(self._target, donate=False)
        missed = answer.report.reason is not None and answer.report.reason == "corrupt_donor"
        same = answer.token_ids == self._cold.token_ids and answer.reason is FinishReason.LENGTH
        return ReadResult.DETECTED if missed and same else ReadResult.WRONG

    def _close(self) -> None:
        self._engine.close()

    def _run(
        self, tokens: np.ndarray, *, reuse: bool = True, donate: bool = True
    ) -> GenerationResult:
        self._serial += 1
        request = GenerationRequest(
            request_id=f"r{self._serial}",
            tokens=tokens.astype(np.int32),
            namespace=self._engine.namespace(),
            sampling=SamplingParams(max_tokens=3, ignore_eos=True),
            policy="none",
            reuse=reuse,
            donate=donate,
        )
        result = self._engine.submit(request).result()
        self._engine.donors.wait()
        return result


def make_targets(folder: Path, *, seed: int) -> list[Target]:
    """One target of each kind, with its files under `folder`."""
    from benchmarks.corruption_manifests import CompressedManifest, FrozenManifest

    logging.getLogger("semblend").setLevel(logging.ERROR)  # thousands of expected warnings
    torch.manual_seed(seed)
    return [
        KvInMemory(),
        KvFile(folder),
        SharedSegment(),
        DonorManifest(),
        CertificateFile(folder),
        FleetEvent(),
        FleetHeartbeat(),
        DirectorySnapshot(folder),
        FrozenManifest(folder),
        CompressedManifest(folder),
        EngineDonor(),
    ]
