"""Segments and manifests as bytes: a checksum covers every byte, and a key every name."""

from __future__ import annotations

import struct

import numpy as np
import torch
import xxhash

from semblend.core.errors import CorruptSegmentError, SerialisationError
from semblend.core.tokens import TokenArray
from semblend.fleet.keys import FleetKeys
from semblend.fleet.transport.store import Buffer
from semblend.kv.segments import Segment, SegmentKey, kv_bytes, kv_checksum, require_exact
from semblend.kv.tiers.segment_file import HEADER_BYTES, Header

_MANIFEST = struct.Struct("<8sQ")
_MAGIC = b"SBMANIF1"


def segment_name(key: SegmentKey, keys: FleetKeys) -> str:
    """A segment's name in a shared store: its content digest, keyed with the fleet's key."""
    return keys.object_name(key.digest)


def manifest_name(donor_key: int, keys: FleetKeys) -> str:
    """The name of a donor's manifest there."""
    return keys.object_name(b"manifest" + donor_key.to_bytes(8, "little"))


def encode_segment(segment: Segment) -> list[Buffer]:
    """Header and K/V of a segment.

    Raises
    ------
    DonorError
        If it is tainted: approximate K/V stays with its request.
    """
    require_exact(segment)
    kv = segment.kv.detach().cpu().contiguous()
    header = Header(
        key=segment.key, shape=tuple(kv.shape), dtype=kv.dtype, checksum=kv_checksum(kv)
    )
    return [header.encode(), kv_bytes(kv)]


def decode_segment(data: Buffer, key: SegmentKey) -> Segment:
    """Decode a segment and check that it is the one of `key`.

    Raises
    ------
    CorruptSegmentError
        If any byte changed since it was written, or it is another segment.
    """
    view = memoryview(data).cast("B")
    name = key.name[:16]
    header = Header.decode(bytes(view[:HEADER_BYTES]), name=name)
    if header.key != key:
        raise CorruptSegmentError(f"shared segment {name}: it holds another segment")
    if len(view) != HEADER_BYTES + header.payload_bytes:
        raise CorruptSegmentError(f"shared segment {name}: wrong length")
    kv = torch.empty(header.shape, dtype=header.dtype)
    kv_bytes(kv)[:] = view[HEADER_BYTES:]
    if kv_checksum(kv) != header.checksum:
        raise CorruptSegmentError(f"shared segment {name}: K/V fails its checksum")
    return Segment(key=key, kv=kv, checksum=header.checksum)


def encode_manifest(tokens: TokenArray) -> list[Buffer]:
    """A donor's tokens. Everything else follows from them and its namespace."""
    body = np.ascontiguousarray(tokens, dtype="<i4").tobytes()
    return [_MANIFEST.pack(_MAGIC, xxhash.xxh3_64_intdigest(body)), body]


def decode_manifest(data: Buffer) -> TokenArray:
    """A donor's tokens, shape [n].

    Raises
    ------
    SerialisationError
        If any byte changed since it was written.
    """
    view = memoryview(data).cast("B")
    if len(view) < _MANIFEST.size or (len(view) - _MANIFEST.size) % 4:
        raise SerialisationError("donor manifest: wrong length")
    magic, checksum = _MANIFEST.unpack_from(view)
    body = view[_MANIFEST.size :]
    if magic != _MAGIC or xxhash.xxh3_64_intdigest(body) != checksum:
        raise SerialisationError("donor manifest: fails its checksum")
    tokens: TokenArray = np.frombuffer(body, dtype="<i4").astype(np.int32)
    return tokens
