"""Events as JSON in the format other routers already read; no input is trusted.

Our own additions (fingerprints, the namespace's published name) are in separate fields
that other readers ignore.

The version increases when a reader of the old version would misread an event. Optional
fields that a reader may ignore (`blocks`) do not increase it.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from pydantic_core import from_json

from semblend.core.errors import SerialisationError
from semblend.fleet.events.event_values import (
    SCHEMA_VERSION,
    DonorEvicted,
    DonorRegistered,
    DonorRelocated,
    DonorsPurged,
    Event,
    EventData,
    EventSegment,
    GenerationReset,
    Heartbeat,
    Location,
    SealedBlocks,
)
from semblend.fleet.events.seal import require_seal, sealed
from semblend.fleet.sketch import SCHEME

MAX_EVENT_BYTES = 1 << 20
"""JetStream's usual message limit; larger messages are refused unread."""
_MAX_ID = 2**63 - 1


def encode(event: Event) -> bytes:
    return _json(
        {
            "schema_version": SCHEMA_VERSION,
            "event_id": event.event_id,
            "worker_id": event.worker_id,
            "dp_rank": event.dp_rank,
            "data": _data(event.data),
        }
    )


def decode(payload: bytes) -> Event:
    """Read an event.

    Raises
    ------
    SerialisationError
        Naming the malformed field.
    """
    record = _record(payload)
    version = record.get("schema_version")
    if version != SCHEMA_VERSION:
        raise SerialisationError(f"event schema_version {version!r}: expected {SCHEMA_VERSION}")
    data = _mapping(record, "data")
    kind = data.get("kind")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise SerialisationError(f"event data.kind {kind!r}: expected one of {', '.join(_READERS)}")
    return Event(
        event_id=_integer(record, "event_id"),
        worker_id=_text(record, "worker_id"),
        dp_rank=_integer(record, "dp_rank"),
        data=reader(data),
    )


def encode_heartbeat(beat: Heartbeat) -> bytes:
    return _json(
        {
            "schema_version": SCHEMA_VERSION,
            "worker_id": beat.worker_id,
            "dp_rank": beat.dp_rank,
            "provider_generation": beat.generation,
            "last_event_id": beat.last_event_id,
        }
    )


def decode_heartbeat(payload: bytes) -> Heartbeat:
    """Read a heartbeat; raises like :func:`decode`."""
    record = _record(payload)
    return Heartbeat(
        worker_id=_text(record, "worker_id"),
        dp_rank=_integer(record, "dp_rank"),
        generation=_integer(record, "provider_generation"),
        last_event_id=_integer(record, "last_event_id"),
    )


# -- encoding --------------------------------------------------------------------


def _data(data: EventData) -> dict[str, Any]:
    match data:
        case DonorRegistered():
            return _registered(data)
        case DonorEvicted():
            return {
                "kind": "donor_evicted",
                "donor_id": data.donor_id,
                "provider_generation": data.generation,
            }
        case DonorsPurged():
            scope: dict[str, Any] = {"all": True}
            if data.namespace_id is not None:
                scope = {"namespace": data.namespace_id}
            return {
                "kind": "donors_purged",
                "scope": scope,
                "provider_generation": data.generation,
            }
        case GenerationReset():
            return {
                "kind": "provider_generation_reset",
                "generation": data.generation,
                "namespace": dict(data.namespace),
            }
        case DonorRelocated():
            return {
                "kind": "donor_relocated",
                "donor_id": data.donor_id,
                "provider_generation": data.generation,
                "new_location": _location(data.new_location),
            }


def _registered(data: DonorRegistered) -> dict[str, Any]:
    vector = np.asarray(data.embedding, dtype="<f4").tobytes()
    namespace = {**data.namespace}
    namespace["extra"] = {**namespace.get("extra", {}), "semblend_namespace": data.namespace_id}
    blocks = data.blocks
    return {
        "kind": "donor_registered",
        "donor_id": data.donor_id,
        "namespace": namespace,
        "location": _location(data.location),
        "token_count": data.token_count,
        "provider_generation": data.generation,
        "segments": [
            {
                "segment_id": f"{segment.digest:016x}",
                "token_range": [segment.start, segment.end],
                "digest": segment.digest,
                "block_hashes": list(segment.block_hashes),
                # The whole prompt's vector goes with its first segment.
                "provider_metadata": list(vector) if index == 0 else [],
            }
            for index, segment in enumerate(data.segments)
        ],
        "fingerprints": {
            "scheme": SCHEME,
            "sampling": data.sampling,
            "hashes": base64.b64encode(data.hashes.astype("<u8").tobytes()).decode(),
        },
        **({} if blocks is None else {"blocks": _sealed_blocks(blocks)}),
    }


def _sealed_blocks(blocks: SealedBlocks) -> dict[str, str]:
    return {
        "scheme": blocks.scheme,
        "nonce": base64.b64encode(blocks.nonce).decode(),
        "names": base64.b64encode(blocks.names).decode(),
    }


def _location(location: Location) -> dict[str, Any]:
    if location.kind == "shared":
        return {
            "kind": "shared",
            "backend": location.backend,
            "tier": location.tier,
            "locator": location.locator,
        }
    place: dict[str, Any] = {
        "kind": "worker",
        "worker_id": location.worker_id,
        "dp_rank": location.dp_rank,
        "tier": location.tier,
    }
    if location.locator:
        place.update(backend=location.backend, locator=location.locator)
    return place


def _json(value: Mapping[str, Any]) -> bytes:
    return sealed(json.dumps(value, separators=(",", ":")).encode())


# -- decoding --------------------------------------------------------------------


def _read_registered(data: Mapping[str, Any]) -> DonorRegistered:
    namespace = _mapping(data, "namespace")
    extra = namespace.get("extra", {})
    if not isinstance(extra, dict):
        raise SerialisationError("event namespace.extra: expected a mapping")
    sketch = _mapping(data, "fingerprints")
    if sketch.get("scheme") != SCHEME:
        raise SerialisationError(
            f"event fingerprints.scheme {sketch.get('scheme')!r}: expected {SCHEME!r}"
        )
    listed = data.get("segments", [])
    if not isinstance(listed, list):
        raise SerialisationError("event segments: expected a list")
    return DonorRegistered(
        donor_id=_text(data, "donor_id"),
        namespace_id=_text(extra, "semblend_namespace"),
        namespace=namespace,
        location=_read_location(_mapping(data, "location")),
        token_count=_integer(data, "token_count"),
        generation=_integer(data, "provider_generation"),
        segments=tuple(_read_segment(item) for item in listed),
        sampling=max(1, _integer(sketch, "sampling")),
        hashes=_words(sketch.get("hashes")),
        embedding=_vector(listed),
        blocks=_read_blocks(data) if "blocks" in data else None,
    )


def _read_blocks(data: Mapping[str, Any]) -> SealedBlocks:
    blocks = _mapping(data, "blocks")
    return SealedBlocks(
        scheme=_text(blocks, "scheme"),
        nonce=_bytes(blocks.get("nonce"), "blocks.nonce"),
        names=_bytes(blocks.get("names"), "blocks.names"),
    )


def _read_segment(item: object) -> EventSegment:
    if not isinstance(item, dict):
        raise SerialisationError("event segments[]: expected a mapping")
    bounds = item.get("token_range")
    if (
        type(bounds) is not list
        or len(bounds) != 2
        or type(bounds[0]) is not int
        or type(bounds[1]) is not int
        or not 0 <= bounds[0] < bounds[1]
    ):
        raise SerialisationError(f"event segments[].token_range {bounds!r}: expected [start, end)")
    blocks = item.get("block_hashes") or ()
    if blocks and (
        not isinstance(blocks, list) or not all(isinstance(b, (int, str)) for b in blocks)
    ):
        raise SerialisationError("event segments[].block_hashes: expected integers or strings")
    digest = item.get("digest")
    if not isinstance(digest, int) or not 0 <= digest < 2**64:
        raise SerialisationError(f"event segments[].digest {digest!r}: expected 64 bits")
    return EventSegment(start=bounds[0], end=bounds[1], digest=digest, block_hashes=tuple(blocks))


def _read_location(data: Mapping[str, Any]) -> Location:
    if data.get("kind") == "shared":
        return Location(
            kind="shared",
            tier=_text(data, "tier"),
            backend=_text(data, "backend"),
            locator=_text(data, "locator"),
        )
    if data.get("kind") != "worker":
        raise SerialisationError(f"event location.kind {data.get('kind')!r}: not worker or shared")
    return Location(
        tier=_text(data, "tier"),
        worker_id=_text(data, "worker_id"),
        dp_rank=_integer(data, "dp_rank"),
        backend=_text(data, "backend") if "locator" in data else "",
        locator=_text(data, "locator") if "locator" in data else "",
    )


def _read_evicted(data: Mapping[str, Any]) -> DonorEvicted:
    return DonorEvicted(
        donor_id=_text(data, "donor_id"), generation=_integer(data, "provider_generation")
    )


def _read_purged(data: Mapping[str, Any]) -> DonorsPurged:
    scope = _mapping(data, "scope")
    if not scope.get("all") and "namespace" not in scope:
        # An unknown scope may mean anything, so purging everything is the safe reading.
        scope = {"all": True}
    return DonorsPurged(
        generation=_integer(data, "provider_generation"),
        namespace_id=None if scope.get("all") else _text(scope, "namespace"),
    )


def _read_reset(data: Mapping[str, Any]) -> GenerationReset:
    namespace = data.get("namespace", {})
    return GenerationReset(
        generation=_integer(data, "generation"),
        namespace=namespace if isinstance(namespace, dict) else {},
    )


def _read_relocated(data: Mapping[str, Any]) -> DonorRelocated:
    return DonorRelocated(
        donor_id=_text(data, "donor_id"),
        generation=_integer(data, "provider_generation"),
        new_location=_read_location(_mapping(data, "new_location")),
    )


_READERS: dict[str, Callable[[Mapping[str, Any]], EventData]] = {
    "donor_registered": _read_registered,
    "donor_evicted": _read_evicted,
    "donors_purged": _read_purged,
    "provider_generation_reset": _read_reset,
    "donor_relocated": _read_relocated,
}


def _record(payload: bytes) -> dict[str, Any]:
    if len(payload) > MAX_EVENT_BYTES:
        raise SerialisationError(
            f"event of {len(payload)} bytes: expected at most {MAX_EVENT_BYTES}"
        )
    require_seal(payload)
    try:
        # pydantic's parser: three times as fast as the standard library's, and it refuses
        # deep nesting instead of overflowing the stack.
        record = from_json(payload)
    except ValueError as error:
        raise SerialisationError(f"event is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise SerialisationError("event: expected a JSON object")
    return record


def _mapping(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = record.get(name)
    if not isinstance(value, dict):
        raise SerialisationError(f"event {name}: expected a mapping")
    return value


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 512:
        raise SerialisationError(f"event {name}: expected a string of 1 to 512 characters")
    return value


def _integer(record: Mapping[str, Any], name: str) -> int:
    value = record.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_ID:
        raise SerialisationError(f"event {name}: expected a whole number from 0 to 2**63 - 1")
    return value


def _bytes(text: object, name: str) -> bytes:
    try:
        return base64.b64decode(text if isinstance(text, str) else "?", validate=True)
    except (binascii.Error, ValueError) as error:
        raise SerialisationError(f"event {name}: not base64 ({error})") from error


def _words(text: object) -> np.ndarray[Any, np.dtype[np.uint64]]:
    raw = _bytes(text, "fingerprints.hashes")
    if len(raw) % 8:
        raise SerialisationError("event fingerprints.hashes: not whole 64-bit words")
    return np.frombuffer(raw, dtype="<u8").astype(np.uint64, copy=False)


def _vector(segments: list[Any]) -> tuple[float, ...]:
    raw = segments[0].get("provider_metadata") if segments else None
    if not raw:
        return ()
    if not isinstance(raw, list):  # bytes(n) of a number would be n zeros
        raise SerialisationError("event segments[0].provider_metadata: expected a list of bytes")
    try:
        vector = np.frombuffer(bytes(raw), dtype="<f4")
    except (TypeError, ValueError) as error:
        raise SerialisationError(
            "event segments[0].provider_metadata: expected little-endian float32 bytes"
        ) from error
    if not np.isfinite(vector).all():
        raise SerialisationError("event segments[0].provider_metadata: expected finite numbers")
    return tuple(vector.tolist())
