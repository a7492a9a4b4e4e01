"""Every public error of SemBlend, in one tree.

A caller who catches :class:`SemBlendError` catches everything we raise on
purpose. None of these ever reaches a user's request: the facade and the engine
adapters turn them into a cold prefill and a named decline reason.
"""

from __future__ import annotations

from semblend.core.installing import install_command


class SemBlendError(Exception):
    """Base of every error SemBlend raises on purpose."""


class SettingsError(SemBlendError, ValueError):
    """A setting has a value it cannot take; the message names it and what would be right."""


class PolicySpecError(SettingsError):
    """The text of a recompute policy cannot be read; the message quotes it."""


class NamespaceError(SemBlendError, ValueError):
    """A namespace is missing a part, or two namespaces were mixed."""


class InvalidTokensError(SemBlendError, ValueError):
    """A prompt is not a one-dimensional run of token ids in range."""


class PlanError(SemBlendError, ValueError):
    """A plan breaks one of its own invariants."""


class DonorError(SemBlendError, ValueError):
    """A donor cannot be registered as asked (a duplicate id, tainted K/V, too large)."""


class SerialisationError(SemBlendError, ValueError):
    """A stored or received document (plan, profile, certificate) is not what it claims to be."""


class MissingExtraError(SemBlendError, ImportError):
    """An optional dependency is needed; the message names the extra that brings it."""

    def __init__(self, *, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed. "
            f"To install it, {install_command(extra)}"
        )
        self.package = package
        self.extra = extra


class ForeignDistributionError(SemBlendError, ImportError):
    """Another project of our name installed the running `semblend`; the message names it."""


class EmbedderError(SemBlendError, RuntimeError):
    """An embedder or its model cannot be used here; the message says why and what would serve."""


class VectorError(SemBlendError, ValueError):
    """Vectors are not finite rows of the dimension the index was made for."""


class UnsupportedRotaryError(SemBlendError, ValueError):
    """The model's rotary embedding is of a kind whose K cannot be moved safely."""


class UnsupportedModelError(SemBlendError, ValueError):
    """The model has a feature segmented prefill was not proven for."""


class StorageError(SemBlendError, OSError):
    """A K/V tier could not store or read a segment."""


class CorruptSegmentError(StorageError):
    """A stored segment fails its checksum; it is treated as a miss."""


class CapacityError(StorageError):
    """Nothing more fits and nothing may be evicted."""


class ServerError(SemBlendError, OSError):
    """A server that is measured does not answer, or not as it should."""


class RequestError(SemBlendError, ValueError):
    """A request to the embedded engine or server cannot be served; the message says why."""


class RequestFieldError(RequestError):
    """A field of a request has a value it cannot take."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class EngineBusyError(RequestError):
    """The engine cannot take the request now; the same request may be taken later."""
