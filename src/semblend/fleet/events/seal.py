"""A checksum on every message: what arrives is what was said, or it is refused.

The last field of a message's JSON object is the xxh3 of every byte before it. Other
readers pass over the field; ours takes no message without it, so that a flipped bit in a
donor's fingerprints is a lost event (which the rank's next event number tells) and never a
wrong entry in a directory.
"""

from __future__ import annotations

import xxhash

from semblend.core.errors import SerialisationError

_FIELD = b',"xxh3":"'
_END = b'"}'
_DIGITS = 16


def sealed(body: bytes) -> bytes:
    """A JSON object's bytes, `{"…": …}`, with its checksum as one field more."""
    said = body[:-1]
    return said + _FIELD + xxhash.xxh3_64_hexdigest(said).encode() + _END


def require_seal(payload: bytes) -> None:
    """Check a message's checksum.

    Raises
    ------
    SerialisationError
        If there is none, or any byte is not what was written.
    """
    at = len(payload) - len(_FIELD) - _DIGITS - len(_END)
    said = payload[: max(0, at)]
    if at < 1 or payload != said + _FIELD + xxhash.xxh3_64_hexdigest(said).encode() + _END:
        raise SerialisationError("event: its checksum is missing or does not match")
