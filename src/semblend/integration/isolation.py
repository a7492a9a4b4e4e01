"""What keeps users of one engine apart, as namespaces name it: salts are never revealed."""

from __future__ import annotations

import hashlib

UNSALTED = "semblend:ns:no-cache-salt"
"""Of requests without a salt: a name like any other, which no salt has."""


def by_salt(cache_salt: str | None) -> str:
    """A cache salt's name in namespaces, which does not reveal the salt."""
    if cache_salt is None or not cache_salt.strip():
        return UNSALTED
    return "semblend:ns:salt:" + hashlib.sha256(cache_salt.strip().encode()).hexdigest()[:32]
