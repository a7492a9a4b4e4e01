"""What separates the users of one engine, as namespaces name it: salts are never revealed.

Salts are compared byte for byte: `"acme"` and `"acme "` are two of them. Only None is no salt here.
Where an engine takes an empty salt for none, its adapter says so before it asks for a name.
"""

from __future__ import annotations

import hashlib

UNSALTED = "semblend:ns:no-cache-salt"
"""Of requests without a salt: a name like any other, which no salt has."""

UNKEYED = "semblend:ns:no-extra-key"
"""The same where an extra key separates users too."""


def by_salt(cache_salt: str | None) -> str:
    """A cache salt's name in namespaces, which does not reveal the salt."""
    if cache_salt is None:
        return UNSALTED
    return "semblend:ns:salt:" + hashlib.sha256(_bytes(cache_salt)).hexdigest()[:32]


def by_keys(*keys: str | None) -> str:
    """The name of several keys that separate users only together, which reveals none of them."""
    digest = hashlib.sha256()
    for key in keys:
        # With their lengths: ("a", "bc") and ("ab", "c") are two pairs, whatever bytes they hold.
        data = b"" if key is None else _bytes(key)
        digest.update(bytes([key is not None]) + len(data).to_bytes(8, "little") + data)
    return "semblend:ns:keys:" + digest.hexdigest()[:32]


def by_extra_key(extra_key: str | None, cache_salt: str | None) -> str:
    """The name of an extra key and a salt, which reveals neither.

    As SGLang's tree has it: an empty salt is no salt. An empty extra key it would tell from none,
    but its API makes none of it first.
    """
    salt = cache_salt or None
    if extra_key is None and salt is None:
        return UNKEYED
    return by_keys(extra_key, salt)


def _bytes(text: str) -> bytes:
    # Half of a surrogate pair is bytes like any others: naming a salt must not fail.
    return text.encode("utf-8", "surrogatepass")
