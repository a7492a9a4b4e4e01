"""A checksum on every message: it arrives as it was sent, or it is refused.

The last field of a message's JSON object is the xxh3 of every byte before it. Other readers
ignore the field; ours accepts no message without it. A flipped bit in a donor's
fingerprints is therefore a lost event (noticed by the rank's next event number) and never a
wrong entry in a directory.
"""

from __future__ import annotations

import xxhash

from semblend.core.errors import SerialisationError

_FIELD = b',"xxh3":"'
_END = b'"}'
_DIGITS = 16


def sealed(body: bytes) -> bytes:
    """Append the checksum field to a JSON object's bytes, `{"…": …}`."""
    said = body[:-1]
    return said + _FIELD + xxhash.xxh3_64_hexdigest(said).encode() + _END


def require_seal(payload: bytes) -> None:
    """Check a message's checksum.

    Raises
    ------
    SerialisationError
        If it is missing, or any byte changed since it was written.
    """
    at = len(payload) - len(_FIELD) - _DIGITS - len(_END)
    said = payload[: max(0, at)]
    if at < 1 or payload != said + _FIELD + xxhash.xxh3_64_hexdigest(said).encode() + _END:
        raise SerialisationError("event: its checksum is missing or does not match")
