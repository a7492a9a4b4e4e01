"""Engines' names of a donor's blocks, as they travel: readable with the fleet's secret only.

An engine's block hash is a plain hash of tokens. In the open it would let whoever reads the log
test whether a text is among the donors, and see that two tenants asked the same. So the names are
encrypted, under a nonce of their own for every event; who follows the engine's K/V events has the
secret and reads them.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence

import numpy as np

from semblend.fleet.events.model import SealedBlocks

SCHEME = "shake256-xor/v1"
MAX_BLOCKS = 1 << 16
"""Names of one event; it must fit into a message."""
_NONCE_BYTES = 16


def seal_blocks(names: Sequence[int], secret: bytes) -> SealedBlocks:
    """Names (64 bits each, with a sign or without) for an event."""
    words = np.array([name & 0xFFFF_FFFF_FFFF_FFFF for name in names[:MAX_BLOCKS]], dtype="<u8")
    nonce = os.urandom(_NONCE_BYTES)
    return SealedBlocks(scheme=SCHEME, nonce=nonce, names=_apply(words.tobytes(), nonce, secret))


def open_blocks(sealed: SealedBlocks, secret: bytes) -> tuple[int, ...] | None:
    """The names, 64 bits without a sign; None if they are of a scheme we do not know."""
    if sealed.scheme != SCHEME or len(sealed.names) % 8:
        return None
    plain = _apply(sealed.names, sealed.nonce, secret)
    return tuple(np.frombuffer(plain, dtype="<u8").tolist())


def _apply(data: bytes, nonce: bytes, secret: bytes) -> bytes:
    key = hmac.new(secret, b"semblend:fleet:v1:blocks", hashlib.sha256).digest()
    stream = hashlib.shake_256(key + nonce).digest(len(data))
    mixed = np.frombuffer(data, dtype=np.uint8) ^ np.frombuffer(stream, dtype=np.uint8)
    return mixed.tobytes()
