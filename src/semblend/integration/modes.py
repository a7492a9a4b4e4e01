"""What adapters can be asked to do; a mode means the same in every engine."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """What an adapter may supply to its engine; `AdapterOptions.MODES` are those an engine has."""

    DISCOVERY_ONLY = "discovery_only"
    """Find and report; nothing is captured or loaded."""
    EXACT_PREFIX = "exact_prefix"
    """Load K/V of an identical prefix that the engine's own cache has evicted: exact."""
    REQUEST_ONLY_EXPERIMENTAL = "request_only_experimental"
    """Load an unbroken run from the prompt's start, for this request only."""
    SEGMENTED_EXPERIMENTAL = "segmented_experimental"
    """Load spans anywhere, without a certificate; every response says so."""
    SEGMENTED = "segmented"
    """Load spans anywhere, under the model's quality certificate."""

    @property
    def loads(self) -> bool:
        """Whether donor K/V is loaded at all."""
        return self is not Mode.DISCOVERY_ONLY

    @property
    def segmented(self) -> bool:
        """Whether there may be holes between loaded spans."""
        return self in (Mode.SEGMENTED, Mode.SEGMENTED_EXPERIMENTAL)

    @property
    def standing(self) -> str:
        """What backs its loads: exact, certified or experimental."""
        if self.uncertified:
            return "experimental"
        return "exact" if self is Mode.EXACT_PREFIX else "certified"

    @property
    def uncertified(self) -> bool:
        """Whether approximate K/V may be loaded without a certificate."""
        return self in (Mode.REQUEST_ONLY_EXPERIMENTAL, Mode.SEGMENTED_EXPERIMENTAL)


class Execution(StrEnum):
    """How holes are computed in the segmented modes."""

    NESTED = "nested"
    """One extra pass of the model inside the connector; needs our worker class."""
    STAGED = "staged"
    """The salted ladder: ordinary requests, driven by a client (`semblend.integration.ladder`)."""


class Provider(StrEnum):
    """How donors are discovered."""

    LOCAL = "local"
    """Token fingerprints only."""
    SEMBLEND = "semblend"
    """Fingerprints, and donors of similar meaning as evidence, on a separate thread."""


class CapturePolicy(StrEnum):
    """Which exactly computed prompts become donors."""

    ALL = "all"
    SAMPLED = "sampled"
    """A share of them, chosen by request id."""
    HINTED = "hinted"
    """Those whose request asks for it: kv_transfer_params {"semblend": {"capture": true}}."""
    NONE = "none"


class ReuseRequests(StrEnum):
    """Which requests may use donor K/V."""

    ALL = "all"
    """All except those with {"semblend": {"reuse": false}}."""
    OPT_IN = "opt_in"
    """Only those with {"semblend": {"reuse": true}}."""
