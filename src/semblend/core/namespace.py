"""Which requests may share K/V.

Two requests share K/V only if every part of their namespaces is equal. An unknown part never means
"any": an incomplete namespace matches nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

from semblend.core.errors import NamespaceError

NONE = "none"
"""States that a part does not apply (no adapter, no quantisation)."""

UNNAMED = "semblend:ns:no-"
"""How adapters' names begin for requests without a salt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """All the parts that must be equal for K/V to be shared.

    ``None`` means *unknown* and matches nothing. A part that does not apply is ``"none"``.

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
    """Data type K/V is computed in."""
    cache_dtype: str | None = None
    """Data type of the engine's K/V cache."""
    quantization: str | None = None
    """Weight quantisation, or ``"none"``."""
    adapter: str | None = None
    """LoRA or other adapter and its revision, or ``"none"``."""
    rope: str | None = None
    """The complete rotary configuration."""
    tensor_parallel: int | None = None
    """Number of tensor-parallel ranks. Each rank holds only its own heads."""
    block_size: int | None = None
    """Tokens per block of the engine's cache (1 if it has no blocks)."""
    cache_layout: str | None = None
    """Memory layout of the engine's cache."""
    tenant: str | None = None
    """Tenant that sent the request."""
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
                    f"(use 'none' for a part that does not apply)"
                )
            elif not value.isascii() and not _is_text(value):
                raise NamespaceError(f"namespace.{field.name}: expected valid Unicode text")

    @classmethod
    def of(cls, *, model: str, **parts: str | int) -> Namespace:
        """Make a complete namespace for one process with one model and one tokenizer.

        Parts that are not given are taken to be the same for the whole process. This is correct if
        all callers of the pipeline share one engine.
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
        """Names of the unknown parts, in declaration order."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) is None)

    @property
    def is_complete(self) -> bool:
        """Whether every part is known. Only complete namespaces match."""
        return None not in _PARTS(self)

    def with_parts(self, **parts: str | int) -> Namespace:
        """Replace some parts, such as the tenant or the salt."""
        return replace(self, **parts)  # type: ignore[arg-type]

    @property
    def names_principal(self) -> bool:
        """Whether an API key or a salt says whose request this is."""
        said = self.cache_salt
        return said is not None and said != NONE and not said.startswith(UNNAMED)

    def for_principal(self, principal: str | None) -> Namespace:
        """The part of this namespace that one principal has to itself; None changes nothing."""
        if principal is None or self.cache_salt is None:
            return self
        # Salts of callers have prefixes of their own, so none passes for another principal's.
        mark = hashlib.sha256(principal.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return self.with_parts(cache_salt=f"principal:{mark}:{self.cache_salt}")

    def to_dict(self) -> dict[str, str | int | None]:
        """Parts by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def key(self, secret: bytes = b"") -> bytes:
        """A 16-byte key for this namespace that does not reveal its parts.

        With a `secret`, knowing the parts is not enough to compute the key, so neither keys nor the
        fingerprints seeded with them can be probed.

        Raises
        ------
        NamespaceError
            If a part is unknown.
        """
        if not self.is_complete:
            raise NamespaceError(f"namespace parts unknown: {', '.join(self.unknown_parts)}")
        # Length-prefixed, so that different namespaces never serialise to the same bytes.
        message = b"".join(
            len(part).to_bytes(4, "little") + part
            for f in fields(self)
            for part in (f.name.encode(), str(getattr(self, f.name)).encode())
        )
        return hmac.new(b"semblend:namespace:v1" + secret, message, hashlib.sha256).digest()[:16]


def salt_part(cache_salt: str | None) -> str:
    """Turn a caller's cache salt into a namespace part.

    >>> salt_part(None), salt_part("none"), salt_part("")
    ('none', 'salt:none', 'salt:')
    """
    # The prefix keeps a caller's salt "none" apart from having no salt.
    return NONE if cache_salt is None else f"salt:{cache_salt}"


def _is_text(value: str) -> bool:
    """Whether the string can be encoded. A lone surrogate cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_PARTS = attrgetter(*(field.name for field in fields(Namespace)))
_NUMERIC = frozenset({"tensor_parallel", "block_size"})
