"""All public errors of SemBlend, in one tree.

Catching :class:`SemBlendError` catches everything SemBlend raises on purpose. None of these errors
fails a user's request: the facade and the engine adapters turn them into a cold prefill with a
decline reason.
"""

from __future__ import annotations

from semblend.core.installing import install_command


class SemBlendError(Exception):
    """Base class of every error SemBlend raises on purpose."""


class SettingsError(SemBlendError, ValueError):
    """A setting has an invalid value. The message names the setting and what is expected."""


class PolicySpecError(SettingsError):
    """A recompute policy's text cannot be parsed. The message quotes it."""


class NamespaceError(SemBlendError, ValueError):
    """A namespace lacks a part, or two namespaces were mixed."""


class InvalidTokensError(SemBlendError, ValueError):
    """A prompt is not a one-dimensional sequence of valid token ids."""


class PlanError(SemBlendError, ValueError):
    """A plan breaks one of its own invariants."""


class DonorError(SemBlendError, ValueError):
    """A donor cannot be registered: duplicate id, tainted K/V or too large."""


class SerialisationError(SemBlendError, ValueError):
    """A stored or received document (plan, profile, certificate) is not what it claims to be."""


class MissingExtraError(SemBlendError, ImportError):
    """An optional dependency is missing. The message names the extra that installs it."""

    def __init__(self, *, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed. "
            f"To install it, {install_command(extra)}"
        )
        self.package = package
        self.extra = extra


class ForeignDistributionError(SemBlendError, ImportError):
    """A different project with our name installed the running `semblend`. The message names it."""


class EmbedderError(SemBlendError, RuntimeError):
    """An embedder or its model cannot be used. The message says why and what would work."""


class VectorError(SemBlendError, ValueError):
    """Vectors are not finite rows of the index's dimension."""


class UnsupportedRotaryError(SemBlendError, ValueError):
    """The model's rotary embedding does not allow K to be moved safely."""


class UnsupportedModelError(SemBlendError, ValueError):
    """The model has a feature for which segmented prefill is not proven."""


class StorageError(SemBlendError, OSError):
    """A K/V tier could not store or read a segment."""


class CorruptSegmentError(StorageError):
    """A stored segment fails its checksum and is treated as a miss."""


class CapacityError(StorageError):
    """Storage is full and nothing may be evicted."""


class ServerError(SemBlendError, OSError):
    """A server that is measured does not answer, or not as it should."""


class RequestError(SemBlendError, ValueError):
    """A request to the embedded engine or server cannot be served. The message says why."""


class RequestFieldError(RequestError):
    """A request field has an invalid value."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class EngineBusyError(RequestError):
    """The engine cannot take the request now. The same request may succeed later."""
