"""What is fuzzed: each parser behind one function of bytes.

A target returns, or raises only what its parser documents; anything else is a finding. If a
checksum would reject every damaged input, the target repairs it first: an attacker can compute
it too, so the code behind it must be safe by itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
import xxhash

from benchmarks.fuzz import bench_targets, http_targets
from benchmarks.fuzz.scratch import scratch_file
from semblend.core.errors import SemBlendError
from semblend.core.faults import parse_faults
from semblend.core.namespace import Namespace
from semblend.core.plan import Plan, Span
from semblend.core.settings import Settings
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.events import codec
from semblend.fleet.events.event_values import (
    DonorEvicted,
    DonorRegistered,
    Event,
    EventSegment,
    GenerationReset,
    Heartbeat,
    Location,
)
from semblend.fleet.events.seal import sealed
from semblend.fleet.residency.decoding import decode_batch
from semblend.fleet.transport import payload
from semblend.integration.sglang.options import BackendOptions
from semblend.integration.vllm.options import ConnectorOptions
from semblend.kv.segments import Segment, SegmentKey
from semblend.kv.tiers.segment_file import HEADER_BYTES
from semblend.planning import certificates
from semblend.planning.certificates import Certificate
from semblend.planning.policies.base import policy_from_spec

KEY = SegmentKey(namespace=bytes(16), start=0, length=2, digest=bytes(32))
NOW = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One parser: how to run it, and valid inputs to start from."""

    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


# -- the fleet's events ----------------------------------------------------------------------


def event(data: bytes) -> None:
    """Events from the log, one per line, applied to a directory."""
    read: list[Event] = []
    for line in data.split(b"\n"):
        for given in (line, _resealed(line)):
            try:
                read.append(codec.decode(given))
            except SemBlendError:
                continue
            codec.decode(codec.encode(read[-1]))
    if read:
        Directory(SketchIndex(max_donors=8, max_postings=256)).apply(read)


def heartbeat(data: bytes) -> None:
    """A heartbeat, applied to a directory."""
    for given in (data, _resealed(data)):
        try:
            beat = codec.decode_heartbeat(given)
        except SemBlendError:
            continue
        Directory(SketchIndex(max_donors=8, max_postings=256)).hear(beat)


def _resealed(line: bytes) -> bytes:
    """The message with a correct checksum, whatever it contains."""
    body, field, _ = line.rpartition(b',"xxh3":"')
    return sealed((body if field else line[:-1]) + b"}")


def _event_seeds() -> list[bytes]:
    registered = DonorRegistered(
        donor_id="d",
        namespace_id="0" * 32,
        token_count=64,
        generation=1,
        location=Location(worker_id="w", tier="host"),
        segments=(EventSegment(start=0, end=64, digest=7),),
        sampling=8,
        hashes=np.arange(4, dtype=np.uint64),
        embedding=(0.5, 0.25),
    )
    reset = GenerationReset(generation=1, namespace={"model": "m"})
    told = (reset, registered, DonorEvicted(donor_id="d", generation=1))
    lines = [
        codec.encode(Event(event_id=number, worker_id="w", dp_rank=0, data=data))
        for number, data in enumerate(told, start=1)
    ]
    return [*lines, b"\n".join(lines)]


def _heartbeat_seeds() -> list[bytes]:
    return [
        codec.encode_heartbeat(Heartbeat(worker_id="w", dp_rank=0, generation=1, last_event_id=3))
    ]


def kv_events(data: bytes) -> None:
    """An engine's own cache events."""
    _allowed(decode_batch, data)


def _kv_event_seeds() -> list[bytes]:
    import msgpack

    stored = ["BlockStored", [1, b"two"], None, [1, 2], 16, None, "GPU"]
    named = {"type": "BlockRemoved", "block_hashes": [1], "medium": "CPU", "group_idx": 1}
    batch = [1.5, [stored, named, ["AllBlocksCleared"]], 0]
    return [bytes(msgpack.packb(batch)), bytes(msgpack.packb([0.0, []]))]


# -- stored K/V ------------------------------------------------------------------------------


def segment(data: bytes) -> None:
    """A shared segment with a correct header seal."""
    body = data[: HEADER_BYTES - 8].ljust(HEADER_BYTES - 8, b"\0")
    sealed = body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body)) + data[HEADER_BYTES:]
    for given in (data, sealed):
        _allowed(lambda raw: payload.decode_segment(raw, KEY), given)


def _segment_seeds() -> list[bytes]:
    kv = torch.arange(2 * 2 * 2 * 1 * 2, dtype=torch.float32).reshape(2, 2, 2, 1, 2)
    parts = payload.encode_segment(Segment(key=KEY, kv=kv))
    return [b"".join(bytes(part) for part in parts)]


def manifest(data: bytes) -> None:
    """A donor's manifest with a correct checksum."""
    repaired = data[:8] + struct.pack("<Q", xxhash.xxh3_64_intdigest(data[16:])) + data[16:]
    for given in (data, repaired):
        _allowed(payload.decode_manifest, given)


def _manifest_seeds() -> list[bytes]:
    tokens = np.arange(5, dtype=np.int32)
    return [b"".join(bytes(part) for part in payload.encode_manifest(tokens))]


def snapshot(data: bytes) -> None:
    """A directory's snapshot with a correct head checksum."""
    head = data[24:]
    size = min(struct.unpack("<I", data[12:16].ljust(4, b"\0"))[0], len(head))
    seal = struct.pack("<IQ", size, xxhash.xxh3_64_intdigest(head[:size]))
    path = scratch_file(data[:12].ljust(12, b"\0") + seal + head, ".snapshot")
    directory = Directory(SketchIndex(max_donors=8, max_postings=256))
    _allowed(directory.load, path)


def _snapshot_seeds() -> list[bytes]:
    directory = Directory(SketchIndex(max_donors=8, max_postings=256))
    directory.apply([codec.decode(line) for line in _event_seeds()[:2]])
    path = scratch_file(b"", ".seed")
    directory.save(path, position=3)
    return [path.read_bytes()]


# -- documents -------------------------------------------------------------------------------


def certificate(data: bytes) -> None:
    """A certificate as is, and with a correct hash."""
    texts = [_text(data)]
    try:
        document = json.loads(texts[0])
        if isinstance(document, dict):
            signed = {**document, "digest": certificates._digest(document)}
            texts.append(json.dumps(signed, indent=2, sort_keys=True) + "\n")
    except (ValueError, RecursionError):
        pass
    for text in texts:
        try:
            read = Certificate.from_json(text)
        except SemBlendError:
            continue
        read.objection(dtype="float32", now=NOW)
        certificates.file_name(read)


def _certificate_seeds() -> list[bytes]:
    plain = Certificate(
        model="m",
        fingerprint="f" * 16,
        dtype="float32",
        policy="none",
        bound={"kl": 0.1},
        figures={"kl": 0.01},
        data={"items": 3},
        versions={"semblend": "0.4.0"},
        created="2026-01-01T00:00:00+00:00",
        expires="2036-01-01T00:00:00+00:00",
    )
    return [plain.to_json().encode()]


def plan(data: bytes) -> None:
    document = _json_object(data)
    if document is not None:
        _allowed(Plan.from_dict, document)


def _plan_seeds() -> list[bytes]:
    spans = (Span(donor_id="d", donor_start=0, target_start=4, length=40),)
    return [Plan(namespace="n", prompt_tokens=64, spans=spans, end=44).to_json().encode()]


def policy(data: bytes) -> None:
    """A recompute policy's text."""
    _allowed(policy_from_spec, _text(data))


def _policy_seeds() -> list[bytes]:
    return [b"none", b"span_head(8) + seams(16)", b"random(ratio=0.2)", b"edit_safe"]


# -- settings --------------------------------------------------------------------------------


def settings(data: bytes) -> None:
    """Settings from variables (KEY=VALUE lines), from JSON and from TOML."""
    text = _text(data)
    lines = (line.partition("=") for line in text.splitlines())
    environ = {f"SEMBLEND_{name.strip()}": value for name, _, value in lines if name.strip()}
    _allowed(Settings.from_env, environ)
    for suffix in (".json", ".toml"):
        _allowed(Settings.from_file, scratch_file(data, suffix))


def _settings_seeds() -> list[bytes]:
    return [
        b"MIN_SIMILARITY=0.5\nENABLED=0\nEMBEDDER=none",
        b'{"min_similarity": 0.5, "embedder": "none"}',
        b'min_similarity = 0.5\nrecompute_policy = "none"',
    ]


def adapter_options(data: bytes) -> None:
    """What vLLM and SGLang pass on."""
    _allowed(BackendOptions.from_env, {"SEMBLEND_SGLANG_CONFIG": _text(data)})
    document = _json_object(data)
    if document is not None:
        _allowed(ConnectorOptions.from_extra_config, document)


def _adapter_seeds() -> list[bytes]:
    return [b'{"mode": "nested", "min_prompt_tokens": 64}', b'{"capture": "sampled"}']


def faults(data: bytes) -> None:
    """SEMBLEND_FAULTS."""
    _allowed(parse_faults, _text(data))


def _fault_seeds() -> list[bytes]:
    return [b"tier_read:0.01,checksum:0.001,disk_full:1:3"]


def namespace(data: bytes) -> None:
    """Namespaces from published parts."""
    document = _json_object(data)
    if document is None:
        return
    names = {field.name for field in dataclasses.fields(Namespace)}
    parts = {name: value for name, value in document.items() if name in names}
    try:
        made = Namespace(**parts)
        if made.is_complete:
            made.key(b"secret")
    except SemBlendError:
        pass


def _namespace_seeds() -> list[bytes]:
    return [json.dumps(Namespace.of(model="m").to_dict()).encode()]


def _allowed(parse: Callable[[Any], object], value: Any) -> None:
    with contextlib.suppress(SemBlendError):
        parse(value)


def _json_object(data: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(_text(data))
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


TARGETS: Mapping[str, Target] = {
    "event": Target(run=event, seeds=_event_seeds),
    "heartbeat": Target(run=heartbeat, seeds=_heartbeat_seeds),
    "kv_events": Target(run=kv_events, seeds=_kv_event_seeds),
    "segment": Target(run=segment, seeds=_segment_seeds),
    "manifest": Target(run=manifest, seeds=_manifest_seeds),
    "snapshot": Target(run=snapshot, seeds=_snapshot_seeds),
    "certificate": Target(run=certificate, seeds=_certificate_seeds),
    "plan": Target(run=plan, seeds=_plan_seeds),
    "policy": Target(run=policy, seeds=_policy_seeds),
    "settings": Target(run=settings, seeds=_settings_seeds),
    "adapter_options": Target(run=adapter_options, seeds=_adapter_seeds),
    "faults": Target(run=faults, seeds=_fault_seeds),
    "namespace": Target(run=namespace, seeds=_namespace_seeds),
    "chat_body": Target(run=http_targets.chat_body, seeds=http_targets.chat_seeds),
    "completion_body": Target(
        run=http_targets.completion_body, seeds=http_targets.completion_seeds
    ),
    "http_headers": Target(run=http_targets.headers, seeds=http_targets.header_seeds),
    "key_file": Target(run=http_targets.key_file, seeds=http_targets.key_file_seeds),
    "audit": Target(run=bench_targets.audit, seeds=bench_targets.audit_seeds),
    "engine_log": Target(run=bench_targets.engine_log, seeds=bench_targets.engine_log_seeds),
    "bench_item": Target(run=bench_targets.item, seeds=bench_targets.item_seeds),
    "bench_result": Target(run=bench_targets.result, seeds=bench_targets.result_seeds),
    "bench_stream": Target(run=bench_targets.stream, seeds=bench_targets.stream_seeds),
}
"""Targets by the name of their seeds' folder."""
