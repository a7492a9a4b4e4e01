"""The two closed lists of SemBlend: what can happen to a request, and why it was not reused."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """What happened to one request, or to its tokens."""

    EXACT_PREFIX = "exact_prefix"
    """Served by the engine's own exact prefix cache."""
    DISCOVERY_ONLY = "discovery_only"
    """Reusable spans were found, but configuration or a missing certificate forbids loading them.
    """
    PLACEMENT = "placement"
    """A router used the evidence to choose a worker. Nothing is confirmed yet."""
    MATERIALISED = "materialised"
    """The engine confirmed that donor K/V was loaded for this request."""
    CONTINUED = "continued"
    """Continued from its own chain's approximate K/V. No donor was used."""
    DECLINED = "declined"
    """A plan existed but was not executed. The reason says why."""
    COLD = "cold"
    """A normal prefill."""


class DeclineReason(StrEnum):
    """Why tokens were computed instead of reused. Every refusal has a reason."""

    DISABLED = "disabled"
    NO_NAMESPACE = "no_namespace"
    INCOMPLETE_NAMESPACE = "incomplete_namespace"
    INVALID_INPUT = "invalid_input"
    SHORT_PROMPT = "short_prompt"
    NO_MATCH = "no_match"
    BELOW_MIN_REUSE_RATIO = "below_min_reuse_ratio"
    NOT_WORTH_IT = "not_worth_it"
    DISCOVERY_ONLY = "discovery_only"
    NO_CERTIFICATE = "no_certificate"
    CERTIFICATE_EXPIRED = "certificate_expired"
    POLICY_DECLINED = "policy_declined"
    SHADOW_DIVERGED = "shadow_diverged"
    DONOR_GONE = "donor_gone"
    CORRUPT_DONOR = "corrupt_donor"
    NO_CAPACITY = "no_capacity"
    UNSUPPORTED = "unsupported"
    MATERIALISATION_FAILED = "materialisation_failed"
    CANCELLED = "cancelled"
    INTERNAL_ERROR = "internal_error"

    @property
    def outcome(self) -> Outcome:
        """The outcome of a request refused for this reason."""
        if self in _DISCOVERY:
            return Outcome.DISCOVERY_ONLY
        if self in _COLD:
            return Outcome.COLD
        return Outcome.DECLINED


def outcome_of(
    reason: DeclineReason | None,
    *,
    reused_tokens: int = 0,
    exact_tokens: int = 0,
    continued_tokens: int = 0,
) -> Outcome:
    """The outcome of a request. Ledgers, counters and responses all use this rule.

    >>> outcome_of(DeclineReason.NO_MATCH, exact_tokens=64).value
    'exact_prefix'
    >>> outcome_of(DeclineReason.DONOR_GONE, exact_tokens=64).value
    'declined'
    """
    if reused_tokens:
        return Outcome.MATERIALISED
    if continued_tokens:
        return Outcome.CONTINUED
    if reason is not None and reason.outcome is not Outcome.COLD:
        return reason.outcome
    return Outcome.EXACT_PREFIX if exact_tokens else Outcome.COLD


def is_for_discovery(reason: DeclineReason | None) -> bool:
    """Whether only a missing permission prevents reuse: what was found could be loaded."""
    return reason in _DISCOVERY


_DISCOVERY = frozenset(
    {
        DeclineReason.DISCOVERY_ONLY,
        DeclineReason.NO_CERTIFICATE,
        DeclineReason.CERTIFICATE_EXPIRED,
    }
)
_COLD = frozenset(
    {
        DeclineReason.DISABLED,
        DeclineReason.NO_NAMESPACE,
        DeclineReason.INCOMPLETE_NAMESPACE,
        DeclineReason.INVALID_INPUT,
        DeclineReason.SHORT_PROMPT,
        DeclineReason.NO_MATCH,
    }
)
