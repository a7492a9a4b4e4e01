"""Engine names of a donor's blocks, encrypted so that only the fleet's secret reads them.

An engine's block hash is a plain hash of tokens. Unencrypted, it would let anyone who reads
the log test whether a text is among the donors, and see that two tenants asked the same. So
the names are encrypted, with a fresh nonce per event. Whoever follows the engine's K/V
events has the secret and can read them.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence

import numpy as np

from semblend.fleet.events.event_values import SealedBlocks

SCHEME = "shake256-xor/v1"
MAX_BLOCKS = 1 << 16
"""Limit per event, because an event must fit into a message."""
_NONCE_BYTES = 16


def seal_blocks(names: Sequence[int], secret: bytes) -> SealedBlocks:
    """Encrypt block names (64 bits each, signed or unsigned) for an event."""
    words = np.array([name & 0xFFFF_FFFF_FFFF_FFFF for name in names[:MAX_BLOCKS]], dtype="<u8")
    nonce = os.urandom(_NONCE_BYTES)
    return SealedBlocks(scheme=SCHEME, nonce=nonce, names=_apply(words.tobytes(), nonce, secret))


def open_blocks(sealed: SealedBlocks, secret: bytes) -> tuple[int, ...] | None:
    """Decrypt to unsigned 64-bit names; None if the scheme is unknown."""
    if sealed.scheme != SCHEME or len(sealed.names) % 8:
        return None
    plain = _apply(sealed.names, sealed.nonce, secret)
    return tuple(np.frombuffer(plain, dtype="<u8").tolist())


def _apply(data: bytes, nonce: bytes, secret: bytes) -> bytes:
    key = hmac.new(secret, b"semblend:fleet:v1:blocks", hashlib.sha256).digest()
    stream = hashlib.shake_256(key + nonce).digest(len(data))
    mixed = np.frombuffer(data, dtype=np.uint8) ^ np.frombuffer(stream, dtype=np.uint8)
    return mixed.tobytes()
