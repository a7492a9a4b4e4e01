"""What one rank's shared objects are called: known to the scheduler, which fetches none itself."""

from __future__ import annotations

import hashlib
import hmac

from semblend.fleet.keys import FleetKeys


def rank_keys(share_key: bytes, rank: int, ranks: int) -> FleetKeys:
    """The names of one rank's objects under a namespace's secret key."""
    part = f"semblend:vllm:rank:{rank}/{ranks}".encode()
    return FleetKeys.of_root(hmac.new(share_key, part, hashlib.sha256).digest())
