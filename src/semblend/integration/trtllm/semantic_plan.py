"""`SemanticKvPlan`: one reuse as TensorRT-LLM's semantic-KV contract writes it.

Our own plan says what to copy and what to compute; this says the same in blocks, with the
policy under which the result may be published. The invariants are checked when one is
made: what is approximate stays with its request, whoever builds the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from semblend.core.errors import PlanError
from semblend.core.namespace import Namespace
from semblend.core.plan import Plan, Span
from semblend.core.tokens import as_token_array
from semblend.integration.isolation import by_salt
from semblend.integration.modes import Mode
from semblend.integration.scheduler.engine_planner import EnginePlanner
from semblend.integration.trtllm import namespaces


class PlanKind(StrEnum):
    """What a plan may be used for."""

    DISCOVERY_ONLY = "discovery_only"
    REQUEST_LOCAL_PREFIX = "request_local_prefix"
    REQUEST_LOCAL_SEGMENTED = "request_local_segmented"
    EXACT_PREFIX = "exact_prefix"

    @property
    def request_local(self) -> bool:
        """Whether its K/V is approximate and belongs to one request."""
        return self in (PlanKind.REQUEST_LOCAL_PREFIX, PlanKind.REQUEST_LOCAL_SEGMENTED)


class PublicationPolicy(StrEnum):
    """Where the resulting K/V may be found afterwards."""

    EXACT_CACHE = "exact_cache"
    REQUEST_LOCAL = "request_local"


class AttentionMode(StrEnum):
    """What the engine's forward computes."""

    FULL_PREFILL = "full_prefill"
    SUFFIX_ONLY_AFTER_PREFIX = "suffix_only_after_prefix"


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticKvSegment:
    """One span, in tokens and in blocks."""

    donor_id: str
    donor_segment_id: str
    donor_positions: tuple[int, int]
    """Half-open."""
    target_positions: tuple[int, int]
    """Half-open, as long as the donor's."""
    donor_block_ids: tuple[int, ...] = ()
    """Empty: donors are held outside the engine's pool."""
    target_block_ids: tuple[int, ...] = ()
    layer_recompute_mask: tuple[bool, ...] = ()
    """For each layer, whether the engine computes it instead of loading it; empty where nothing
    is loaded yet. All false in what is dispatched: the engine computes a token on all layers or
    on none."""
    donor_location: str = "host"
    provider_metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        donor, target = self.donor_positions, self.target_positions
        if not (0 <= donor[0] < donor[1] and 0 <= target[0] < target[1]):
            raise PlanError(f"segment: runs [start, end) expected, got {donor} and {target}")
        if donor[1] - donor[0] != target[1] - target[0]:
            raise PlanError(f"segment: {donor} and {target} differ in length")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineExecution:
    """What the engine does behind the loaded prefix."""

    attention_mode: AttentionMode = AttentionMode.FULL_PREFILL
    materialized_prefix_token_count: int = 0
    suffix_start_position: int = 0
    recompute_boundary_layer: int | None = None
    """The first layer whose K/V is loaded; None where nothing is loaded yet. 0 in what is
    dispatched."""
    force_recompute_layers: tuple[int, ...] = ()
    require_materialization_barrier: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticKvPlan:
    """A reuse, ready to be dispatched to the workers or reported."""

    request_id: str
    namespace: str
    kind: PlanKind
    publication_policy: PublicationPolicy
    segments: tuple[SemanticKvSegment, ...] = ()
    donor_ids: tuple[str, ...] = ()
    covered_token_count: int = 0
    """Prompt tokens donors can supply."""
    prefix_token_count: int = 0
    """Tokens present when the engine's forward begins."""
    computed_token_count: int = 0
    """Of those, tokens the engine had itself."""
    requires_rope_correction: bool = False
    engine_execution: EngineExecution = field(default_factory=EngineExecution)
    diagnostics: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.computed_token_count <= self.prefix_token_count:
            raise PlanError(
                f"semantic plan: computed_token_count={self.computed_token_count} must be in "
                f"[0, prefix_token_count={self.prefix_token_count}]"
            )
        exact_cache = self.publication_policy is PublicationPolicy.EXACT_CACHE
        if self.kind.request_local and exact_cache:
            raise PlanError(f"semantic plan: {self.kind.value} may not be published as exact")
        if exact_cache and self.requires_rope_correction:
            raise PlanError("semantic plan: K/V that was rotated may not be published as exact")
        execution = self.engine_execution
        if (
            execution.attention_mode is AttentionMode.SUFFIX_ONLY_AFTER_PREFIX
            and execution.suffix_start_position != self.prefix_token_count
        ):
            raise PlanError(
                f"semantic plan: a suffix that starts at {execution.suffix_start_position} behind "
                f"a prefix of {self.prefix_token_count} tokens"
            )
        for segment in self.segments:
            _check_layers(segment.layer_recompute_mask, execution.recompute_boundary_layer)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return asdict(self)


def _check_layers(mask: tuple[bool, ...], boundary: int | None) -> None:
    """A segment's mask and the plan's boundary say the same."""
    if not mask and boundary is None:
        return
    if boundary is None or mask != tuple(layer < boundary for layer in range(len(mask))):
        raise PlanError(
            f"semantic plan: layers {mask} of a segment against a boundary at layer {boundary}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticKvLookupRequest:
    """What a provider is asked."""

    request_id: str
    tokens: tuple[int, ...]
    cache_salt: str | None = None
    computed_token_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticKvLookupResult:
    """What a provider answers: always a plan, and why it is no more than that."""

    found: bool
    plan: SemanticKvPlan
    similarity: float | None = None
    reuse_ratio: float = 0.0
    rejection_reason: str | None = None


def lookup(
    planner: EnginePlanner, namespace: Namespace, asked: SemanticKvLookupRequest
) -> SemanticKvLookupResult:
    """What is known about a prompt, as evidence. Never raises."""
    theirs = namespace.with_parts(cache_salt=by_salt(asked.cache_salt))
    plan = planner.plan(
        as_token_array(asked.tokens),
        theirs,
        exact_tokens=asked.computed_token_count,
        mode=Mode.SEGMENTED,
    )
    drawn = discovered(plan, request_id=asked.request_id, namespace=namespaces.shown(theirs))
    return SemanticKvLookupResult(plan=drawn, **evidence(plan))


def evidence(plan: Plan | None, reason: str | None = None) -> dict[str, Any]:
    """What a lookup found, and why no more comes of it."""
    if plan is None:
        return {
            "found": False,
            "similarity": None,
            "reuse_ratio": 0.0,
            "rejection_reason": reason,
        }
    said = None if plan.reason is None else plan.reason.value
    return {
        "found": bool(plan.spans),
        "similarity": plan.evidence.similarity,
        "reuse_ratio": plan.reused_tokens / max(1, plan.prompt_tokens),
        "rejection_reason": reason or said,
    }


def dispatched(
    plan: Plan,
    *,
    request_id: str,
    namespace: str,
    block_ids: Sequence[int],
    block_size: int,
    layers: int,
    request_local: bool,
) -> SemanticKvPlan:
    """The plan of one load: contiguous from the engine's own prefix to the region's end."""
    copies = plan.copies
    return SemanticKvPlan(
        request_id=request_id,
        namespace=namespace,
        kind=PlanKind.REQUEST_LOCAL_PREFIX if request_local else PlanKind.EXACT_PREFIX,
        publication_policy=(
            PublicationPolicy.REQUEST_LOCAL if request_local else PublicationPolicy.EXACT_CACHE
        ),
        segments=_segments(copies, block_ids, block_size, layers=layers),
        donor_ids=plan.donor_ids,
        covered_token_count=plan.reused_tokens,
        prefix_token_count=plan.end,
        computed_token_count=plan.exact_tokens,
        requires_rope_correction=any(span.delta for span in copies),
        engine_execution=EngineExecution(
            attention_mode=AttentionMode.SUFFIX_ONLY_AFTER_PREFIX,
            materialized_prefix_token_count=plan.end,
            suffix_start_position=plan.end,
            recompute_boundary_layer=0,
            require_materialization_barrier=True,
        ),
        diagnostics={"policy": plan.policy},
    )


def discovered(plan: Plan, *, request_id: str, namespace: str) -> SemanticKvPlan:
    """What was found, as evidence, or as the plan a ladder carries out."""
    ladder = plan.executable and plan.first_approximate_token is not None
    return SemanticKvPlan(
        request_id=request_id,
        namespace=namespace,
        kind=PlanKind.REQUEST_LOCAL_SEGMENTED if ladder else PlanKind.DISCOVERY_ONLY,
        publication_policy=PublicationPolicy.REQUEST_LOCAL,
        segments=_segments(plan.copies, (), 1),
        donor_ids=plan.donor_ids,
        covered_token_count=plan.reused_tokens,
        prefix_token_count=plan.exact_tokens,
        computed_token_count=plan.exact_tokens,
        requires_rope_correction=any(span.delta for span in plan.copies),
        diagnostics={
            "policy": plan.policy,
            "reason": None if plan.reason is None else plan.reason.value,
            "detail": plan.detail,
        },
    )


def _segments(
    spans: Sequence[Span], block_ids: Sequence[int], block_size: int, *, layers: int = 0
) -> tuple[SemanticKvSegment, ...]:
    return tuple(
        SemanticKvSegment(
            donor_id=span.donor_id,
            donor_segment_id=f"{span.donor_id}:{span.donor_start}-{span.donor_end}",
            donor_positions=(span.donor_start, span.donor_end),
            target_positions=(span.target_start, span.target_end),
            target_block_ids=tuple(
                block_ids[span.target_start // block_size : -(-span.target_end // block_size)]
            ),
            layer_recompute_mask=(False,) * layers,
            provider_metadata={"kind": span.kind.value},
        )
        for span in spans
    )
