"""The published name of a namespace, and the keys its sketches are made with.

Everything here is derived from the namespace and the fleet's secret with HMAC. Names may be
published; keys never are. A reader of events without the secret can tell that two donors
share content and which namespace they belong to, and nothing else: not what the content is,
nor whether a text they have is among it.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

import xxhash

from semblend.core.errors import SettingsError
from semblend.core.namespace import Namespace

MIN_SECRET_CHARACTERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetKeys:
    """The published name of one namespace and its secret keys."""

    namespace_id: str
    """32 hex digits that name the namespace in events and reveal no part of it."""
    gram_key: bytes = field(repr=False)
    """16 bytes: seeds the hashes of token grams."""
    sketch_key: bytes = field(repr=False)
    """16 bytes: keys the pseudo-random function over gram hashes."""
    prefix_key: bytes = field(repr=False)
    """32 bytes: keys the digests of whole prefixes."""
    object_key: bytes = field(repr=False)
    """32 bytes: keys the names of objects in a shared store."""

    @classmethod
    def of(cls, namespace: Namespace, secret: bytes) -> FleetKeys:
        """The keys of a complete namespace.

        Raises
        ------
        NamespaceError
            If a part of the namespace is unknown.
        """
        return cls.of_root(namespace.key(secret))

    @classmethod
    def of_root(cls, root: bytes) -> FleetKeys:
        """The keys of the namespace whose secret key is `root` (`Namespace.key(secret)`).

        The root seeds the worker's own index; published values are derived one step further.
        """
        return cls(
            namespace_id=_derive(root, b"id").hex()[:32],
            gram_key=_derive(root, b"grams")[:16],
            sketch_key=_derive(root, b"sketch")[:16],
            prefix_key=_derive(root, b"prefix"),
            object_key=_derive(root, b"objects"),
        )

    def object_name(self, digest: bytes) -> str:
        """The name of a stored object whose content digest is `digest`."""
        return hashlib.blake2b(digest, key=self.object_key, digest_size=32).hexdigest()


def fleet_secret(secret: str) -> bytes:
    """Check the secret that all members of a fleet share.

    Raises
    ------
    SettingsError
        If it is missing or too short.
    """
    if len(secret) < MIN_SECRET_CHARACTERS:
        raise SettingsError(
            "SEMBLEND_NAMESPACE_SECRET: workers and gateways of a fleet share one secret of at "
            f"least {MIN_SECRET_CHARACTERS} characters, got {len(secret)}; without it their "
            "fingerprints would not match, or could be guessed"
        )
    return secret.encode()


def tenant_key(tenant: str, secret: bytes) -> str:
    """A tenant's published name: in the format other tools use, but keyed."""
    if tenant == "none":
        return "semblend:tenant:v1:none"
    digest = hmac.new(b"semblend:tenant:v1" + secret, tenant.encode(), hashlib.sha256)
    return "semblend:tenant:v1:" + digest.hexdigest()[:32]


def donor_key(worker_id: str, dp_rank: int, donor_id: str) -> int:
    """64 bits that identify a rank's donor; a directory stores these instead of strings."""
    return xxhash.xxh3_64_intdigest(f"{worker_id}\0{dp_rank}\0{donor_id}".encode())


def _derive(root: bytes, purpose: bytes) -> bytes:
    return hmac.new(root, b"semblend:fleet:v1:" + purpose, hashlib.sha256).digest()
