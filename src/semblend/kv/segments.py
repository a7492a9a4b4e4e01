"""Segments: runs of exactly computed K/V, named by everything they depend on.

A token's K/V depends on the model (the namespace), on its position and on every token before it. A
key covers all three with a cryptographic hash, so equal keys mean equal exact K/V, whoever computed
it and however the prompt was split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import xxhash

from semblend.core.errors import DonorError
from semblend.core.faults import FaultPoint, spoiled
from semblend.core.tokens import TokenArray
from semblend.kv.layout import PARTS

NAMESPACE_BYTES = 16
DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentKey:
    """The name of tokens [start, start + length) after one context in one namespace."""

    namespace: bytes
    """`Namespace.key(secret)`, 16 bytes."""
    start: int
    """Position of the first token."""
    length: int
    """Tokens in the segment."""
    digest: bytes
    """Hash of all of the above and of every token from position 0 to the segment's end."""

    def __post_init__(self) -> None:
        if len(self.namespace) != NAMESPACE_BYTES or len(self.digest) != DIGEST_BYTES:
            raise DonorError(
                f"segment key: expected a namespace of {NAMESPACE_BYTES} and a digest of "
                f"{DIGEST_BYTES} bytes, got {len(self.namespace)} and {len(self.digest)}"
            )
        if self.start < 0 or self.length < 1:
            raise DonorError(
                f"segment key: expected start >= 0 and length >= 1, got {self.start}, {self.length}"
            )

    @classmethod
    def of(cls, namespace: bytes, tokens: TokenArray, start: int, end: int) -> SegmentKey:
        """The key of tokens [start, end) of a request whose tokens from position 0 are `tokens`."""
        (key,) = cls.chain(namespace, tokens[:end], [start, end])
        return key

    @classmethod
    def chain(
        cls, namespace: bytes, tokens: TokenArray, edges: Sequence[int]
    ) -> tuple[SegmentKey, ...]:
        """Keys of the segments between neighbouring `edges`, hashing each token once.

        Raises
        ------
        DonorError
            If the edges do not ascend or extend beyond the tokens.
        """
        rising = all(low < high for low, high in pairwise(edges))
        if len(edges) < 2 or not rising or edges[0] < 0 or edges[-1] > len(tokens):
            raise DonorError(
                f"segment edges {list(edges)}: expected at least two, ascending, in "
                f"[0, {len(tokens)}]"
            )
        # Fixed-width ids, so that different tokens never have the same bytes.
        data = np.ascontiguousarray(tokens, dtype="<i4")
        context = hashlib.blake2b(namespace, digest_size=DIGEST_BYTES, person=b"semblend:kv:ctx1")
        context.update(data[: edges[0]].data)
        keys = []
        for start, end in pairwise(edges):
            context.update(data[start:end].data)
            place = start.to_bytes(8, "little") + end.to_bytes(8, "little")
            digest = hashlib.blake2b(
                context.digest() + place, digest_size=DIGEST_BYTES, person=b"semblend:kv:seg1"
            ).digest()
            keys.append(cls(namespace=namespace, start=start, length=end - start, digest=digest))
        return tuple(keys)

    @property
    def name(self) -> str:
        """The digest in hex: the only name a stored segment ever has."""
        return self.digest.hex()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """K/V under a key. Putting a segment into a tier transfers its tensor."""

    key: SegmentKey
    kv: torch.Tensor
    """[layers, parts, tokens, kv_heads, head_dim], K at index 0, contiguous; see `kv.layout`."""
    checksum: int | None = None
    """xxh3 of the bytes of `kv`, once computed."""
    tainted: bool = False
    """Whether any of it was computed after reused K/V. Such a segment is never stored."""

    def __post_init__(self) -> None:
        shape = self.kv.shape
        if self.kv.ndim != 5 or shape[1] not in PARTS or shape[2] != self.key.length:
            raise DonorError(
                f"segment: expected K/V of shape [layers, parts, {self.key.length}, kv_heads, "
                f"head_dim], got {tuple(shape)}"
            )
        if not self.kv.is_contiguous() or self.kv.numel() == 0:
            raise DonorError("segment: expected contiguous, non-empty K/V")

    @property
    def nbytes(self) -> int:
        return self.kv.nbytes


def require_exact(segment: Segment) -> None:
    """Refuse tainted K/V: approximate K/V must never be found as exact.

    Raises
    ------
    DonorError
        If the segment is tainted.
    """
    if segment.tainted:
        raise DonorError(
            f"segment {segment.key.name[:16]} is tainted: K/V computed after reused K/V is "
            f"approximate and stays with its request"
        )


def kv_bytes(kv: torch.Tensor) -> memoryview:
    """The bytes of a contiguous host tensor, not copied."""
    return kv.flatten().view(torch.uint8).numpy().data


def kv_checksum(kv: torch.Tensor) -> int:
    """xxh3 of the bytes of a contiguous host tensor."""
    return spoiled(FaultPoint.CHECKSUM, xxhash.xxh3_64_intdigest(kv_bytes(kv)))
