"""Who may share K/V with whom.

Two requests may share K/V only when every part of their namespaces is equal. A
part that is not known is never "any": an incomplete namespace matches nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

from semblend.core.errors import NamespaceError

NONE = "none"
"""The explicit statement that a part does not apply (no adapter, no quantisation)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """Everything that must be equal for K/V to be shareable.

    ``None`` means *unknown* and fails closed; a part that does not apply is
    stated as ``"none"``.

    >>> ns = Namespace.of(model="m", rope="theta=1e5")
    >>> ns.unknown_parts
    ()
    >>> Namespace(model="m").is_complete
    False
    """

    model: str | None = None
    """Model name or path."""
    model_revision: str | None = None
    """Revision or content fingerprint of the weights."""
    tokenizer: str | None = None
    """Tokenizer name or path."""
    tokenizer_revision: str | None = None
    """Revision or content fingerprint of the tokenizer."""
    kv_dtype: str | None = None
    """Type K/V is computed in."""
    cache_dtype: str | None = None
    """Type K/V is stored in by the engine's cache."""
    quantization: str | None = None
    """Weight quantisation, or ``"none"``."""
    adapter: str | None = None
    """LoRA or other adapter and its revision, or ``"none"``."""
    rope: str | None = None
    """The rotary configuration, in full."""
    tensor_parallel: int | None = None
    """Number of tensor-parallel ranks: a rank holds its own heads only."""
    block_size: int | None = None
    """Tokens in a block of the engine's cache (1 where it has none)."""
    cache_layout: str | None = None
    """Memory layout of the engine's cache."""
    tenant: str | None = None
    """Whose request it is."""
    template: str | None = None
    """Chat or prompt template."""
    cache_salt: str | None = None
    """The request's cache salt, or ``"none"``."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if field.name in _NUMERIC:
                if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                    raise NamespaceError(
                        f"namespace.{field.name}: expected a positive integer, got {value!r}"
                    )
            elif not isinstance(value, str) or not value:
                raise NamespaceError(
                    f"namespace.{field.name}: expected a non-empty string, got {value!r} "
                    f"(a part that does not apply is stated as 'none')"
                )
            elif not value.isascii() and not _is_text(value):
                raise NamespaceError(f"namespace.{field.name}: text that is valid Unicode expected")

    @classmethod
    def of(cls, *, model: str, **parts: str | int) -> Namespace:
        """A complete namespace for one process with one model and one tokenizer.

        Parts that are not given are stated to be that process's own: correct
        where every caller of this pipeline shares the same engine.
        """
        known: dict[str, Any] = {
            field.name: 1 if field.name in _NUMERIC else NONE for field in fields(cls)
        }
        known.update({"model_revision": "local", "tokenizer": model, "tokenizer_revision": "local"})
        unknown = sorted(set(parts) - set(known))
        if unknown:
            raise NamespaceError(
                f"namespace has no part {unknown[0]!r}; its parts are {', '.join(known)}"
            )
        return cls(**{**known, "model": model, **parts})

    @property
    def unknown_parts(self) -> tuple[str, ...]:
        """Names of the parts that are not known, in declaration order."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) is None)

    @property
    def is_complete(self) -> bool:
        """Whether every part is known, so that the namespace may match at all."""
        return None not in _PARTS(self)

    def with_parts(self, **parts: str | int) -> Namespace:
        """This namespace with some parts replaced (a tenant, a salt)."""
        return replace(self, **parts)  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, str | int | None]:
        """Parts by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def key(self, secret: bytes = b"") -> bytes:
        """A 16-byte key that names this namespace without revealing it.

        With a `secret` the key cannot be computed by somebody who only knows the
        parts, so neither keys nor fingerprints seeded with them can be probed.

        Raises
        ------
        NamespaceError
            If a part is unknown.
        """
        if not self.is_complete:
            raise NamespaceError(f"namespace parts unknown: {', '.join(self.unknown_parts)}")
        # Length-prefixed, so that no two different namespaces serialise alike.
        message = b"".join(
            len(part).to_bytes(4, "little") + part
            for f in fields(self)
            for part in (f.name.encode(), str(getattr(self, f.name)).encode())
        )
        return hmac.new(b"semblend:namespace:v1" + secret, message, hashlib.sha256).digest()[:16]


def salt_part(cache_salt: str | None) -> str:
    """A caller's cache salt as the part of a namespace.

    >>> salt_part(None), salt_part("none"), salt_part("")
    ('none', 'salt:none', 'salt:')
    """
    # Marked: callers choose their salts, and none of them is the statement that there is none.
    return NONE if cache_salt is None else f"salt:{cache_salt}"


def _is_text(value: str) -> bool:
    """Whether it can be encoded; half of a surrogate pair cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_PARTS = attrgetter(*(field.name for field in fields(Namespace)))
_NUMERIC = frozenset({"tensor_parallel", "block_size"})
