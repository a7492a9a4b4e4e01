"""The names of one rank's shared objects; the scheduler knows them but fetches none itself."""

from __future__ import annotations

import hashlib
import hmac

from semblend.fleet.keys import FleetKeys


def rank_keys(share_key: bytes, rank: int, ranks: int) -> FleetKeys:
    """The names of one rank's objects under a namespace's secret key."""
    part = f"semblend:vllm:rank:{rank}/{ranks}".encode()
    return FleetKeys.of_root(hmac.new(share_key, part, hashlib.sha256).digest())
