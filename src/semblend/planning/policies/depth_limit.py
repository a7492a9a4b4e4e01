"""No reuse where a passage that opened its document stands deep in a prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from semblend.core.plan import Hole, Span, SpanKind
from semblend.planning.policies.base import (
    Probe,
    RecomputePolicy,
    RecomputeRequest,
    count,
    register_policy,
)
from semblend.planning.policies.none import NoRecompute
from semblend.planning.policies.query_attention import NEAR_TOKENS


@register_policy("depth_limit")
@dataclass(frozen=True, slots=True)
class DepthLimit(RecomputePolicy):
    """`policy`, declining prompts where a passage that opened its document is `tokens` deep.

    Such a passage was computed with nothing but an instruction before it. Far down in a prompt
    it outshouts what stands there, and recomputing a fifth of the prompt does not cure it
    (docs/quality.md): the whole plan is declined, which is a cold prefill.
    """

    grid: ClassVar[tuple[str, ...]] = (
        "depth_limit(budget(budget(edit_dependents(1, 8) + span_head(8), 0.15) "
        "+ query_attention(0.2, 16, 'displaced'), 0.2), 4096)",
    )

    policy: RecomputePolicy = field(default_factory=NoRecompute)
    tokens: int = 4096

    def __post_init__(self) -> None:
        if not isinstance(self.policy, RecomputePolicy):
            raise TypeError(f"a policy expected, got {self.policy!r}")
        count(self.tokens, of="depth_limit: tokens")

    @property
    def dynamic(self) -> bool:
        """Whether the policy inside is."""
        return self.policy.dynamic

    def runs(self, request: RecomputeRequest) -> list[Hole]:
        """The policy's, or everything."""
        if self._declines(request):
            return [Hole(span.target_start, span.target_end) for span in request.spans]
        return self.policy.runs(request)

    def probed_runs(self, request: RecomputeRequest, probe: Probe) -> list[Hole]:
        """The policy's, where anything is left to reuse."""
        return [] if self._declines(request) else self.policy.probed_runs(request, probe)

    def _declines(self, request: RecomputeRequest) -> bool:
        return any(
            opens_its_document(span) and span.target_start > self.tokens for span in request.spans
        )


def opens_its_document(span: Span) -> bool:
    """Whether the donor had read no more than an instruction before a span of some length."""
    return (
        span.kind is SpanKind.MOVED
        and span.donor_start <= NEAR_TOKENS
        and span.length >= NEAR_TOKENS
    )
