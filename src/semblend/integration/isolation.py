"""How namespaces name what separates the users of one engine; salts are never revealed.

Salts are compared byte for byte: `"acme"` and `"acme "` differ. Only None means no salt here.
If an engine treats an empty salt as none, its adapter converts it before asking for a name.
"""

from __future__ import annotations

import hashlib

from semblend.core.namespace import UNNAMED

UNSALTED = f"{UNNAMED}cache-salt"
"""The name for requests without a salt; no salt has this name."""

UNKEYED = f"{UNNAMED}extra-key"
"""The same where an extra key separates users too."""


def by_salt(cache_salt: str | None) -> str:
    """A cache salt's name in namespaces, which does not reveal the salt."""
    if cache_salt is None:
        return UNSALTED
    return "semblend:ns:salt:" + hashlib.sha256(_bytes(cache_salt)).hexdigest()[:32]


def by_salt_number(number: int | None) -> str:
    """The same for an engine that tells an adapter a salt's number alone."""
    return UNSALTED if number is None else f"semblend:ns:salt-id:{number:016x}"


def by_keys(*keys: str | None) -> str:
    """A name for several keys that separate users only together; reveals none of them."""
    digest = hashlib.sha256()
    for key in keys:
        # Include the lengths, so that ("a", "bc") and ("ab", "c") differ, whatever bytes they hold.
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
    # Treat half of a surrogate pair as plain bytes: naming a salt must not fail.
    return text.encode("utf-8", "surrogatepass")
