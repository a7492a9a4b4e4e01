"""What can happen to a request, and why not: the two closed lists of SemBlend."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """What happened to (the tokens of) one request."""

    EXACT_PREFIX = "exact_prefix"
    """The engine's own exact prefix cache served them."""
    DISCOVERY_ONLY = "discovery_only"
    """Reusable spans were found and, by configuration or certificate, not offered."""
    PLACEMENT = "placement"
    """A router used the evidence to choose a worker; nothing is confirmed yet."""
    MATERIALISED = "materialised"
    """The engine confirmed that donor K/V was loaded for this request."""
    CONTINUED = "continued"
    """It went on from its own chain's K/V, which is approximate; nothing was taken from a donor."""
    DECLINED = "declined"
    """A plan existed and was not carried out; the reason says why."""
    COLD = "cold"
    """A normal prefill."""


class DeclineReason(StrEnum):
    """Why tokens were computed rather than reused. Every refusal has one of these."""

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
        """The outcome a request has when it was refused for this reason."""
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
    """What a request is called: the one rule, of ledgers, counters and responses.

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
    """Whether only a missing permission stands against reuse: what was found could be loaded."""
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
