"""The plan: an immutable description of one reuse. Values only, nothing engine-specific."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from operator import attrgetter
from typing import Any, Self

from semblend.core.errors import PlanError, SerialisationError
from semblend.core.outcomes import DeclineReason, Outcome

PLAN_VERSION = 1


class SpanKind(StrEnum):
    """How a span's context in the donor relates to its context in the target."""

    PREFIX = "prefix"
    """At position 0 in both. It is exact, and the engine's own prefix cache handles it."""
    MOVED = "moved"
    """A passage in a different context."""
    BEHIND_EDIT = "behind_edit"
    """Follows the donor's text with a small difference, so its K/V may still carry the donor's
    meaning.
    """


@dataclass(frozen=True, slots=True, order=True)
class Hole:
    """Target tokens [start, end) in the reuse region that are computed.

    To the engine, a recompute run (inside a span, chosen for quality) is also a hole.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise PlanError(f"hole [{self.start}, {self.end}): expected 0 <= start < end")

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A run of tokens identical in target and donor."""

    donor_id: str
    donor_start: int
    target_start: int
    length: int
    kind: SpanKind = SpanKind.MOVED
    edit_tokens: int = 0
    """For BEHIND_EDIT: size of the difference just before the span (the larger side)."""
    opens: bool = False
    """For MOVED: the span starts a paragraph or a turn, in both donor and target."""

    def __post_init__(self) -> None:
        if self.length < 1 or self.donor_start < 0 or self.target_start < 0:
            raise PlanError(
                f"span: expected length >= 1 and starts >= 0, got donor_start={self.donor_start}, "
                f"target_start={self.target_start}, length={self.length}"
            )

    @property
    def target_end(self) -> int:
        """First target position after the span."""
        return self.target_start + self.length

    @property
    def donor_end(self) -> int:
        """First donor position after the span."""
        return self.donor_start + self.length

    @property
    def delta(self) -> int:
        """Positions to rotate K by (target minus donor)."""
        return self.target_start - self.donor_start

    @property
    def is_exact(self) -> bool:
        """Whether its K/V equals a cold prefill's, because the same tokens precede it."""
        return self.kind is SpanKind.PREFIX and self.delta == 0

    def clipped(self, start: int, end: int) -> Span | None:
        """The part of this span inside target positions [start, end), if any."""
        low, high = max(start, self.target_start), min(end, self.target_end)
        if low >= high:
            return None
        if high - low == self.length:
            return self
        return Span(
            donor_id=self.donor_id,
            donor_start=low - self.delta,
            target_start=low,
            length=high - low,
            kind=self.kind,
            edit_tokens=self.edit_tokens,
            opens=self.opens and low == self.target_start,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarRegion:
    """Text that resembles a donor's but is not identical. Evidence only, never loaded."""

    donor_id: str
    donor_start: int
    donor_end: int
    target_start: int
    target_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What discovery saw. For telemetry; never by itself a reason to reuse."""

    fingerprint_hits: int = 0
    matched_tokens: int = 0
    """Target tokens in any verified run, before the gates."""
    candidate_donors: int = 0
    similarity: float | None = None
    """Cosine similarity, if an embedder was used."""
    similar_donor_id: str | None = None
    similar_regions: tuple[SimilarRegion, ...] = ()
    """Only if SEMBLEND_EXACT_MATERIALIZATION_ONLY is 0."""
    lookup_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """Estimated prefill cost, in units of one token's linear (non-attention) compute."""

    cold: float = 0.0
    planned: float = 0.0

    @property
    def saved(self) -> float:
        """Units saved by executing the plan."""
        return self.cold - self.planned

    @property
    def speedup(self) -> float:
        """Estimated ratio of cold to planned prefill."""
        return self.cold / self.planned if self.planned > 0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to copy, what to compute and why, for one request.

    The reuse region is target[0:end). It starts with `exact_tokens` from the engine's own cache,
    followed by `continued_tokens` from the request's chain (core/chain.py). Spans come after those,
    ordered and disjoint. Holes are the gaps between them. Recompute runs are parts of spans that
    are computed anyway. At least one prompt token (the tail) stays outside the region.
    """

    namespace: str
    prompt_tokens: int
    spans: tuple[Span, ...] = ()
    recompute: tuple[Hole, ...] = ()
    end: int = 0
    exact_tokens: int = 0
    """Leading tokens that the engine's own exact prefix cache holds."""
    continued_tokens: int = 0
    """Tokens after those with approximate K/V already in place, from the request's own chain."""
    policy: str = "none"
    reason: DeclineReason | None = None
    detail: str = ""
    evidence: Evidence = field(default_factory=Evidence)
    cost: CostEstimate = field(default_factory=CostEstimate)

    def __post_init__(self) -> None:
        if self.prompt_tokens < 0 or not 0 <= self.end <= max(0, self.prompt_tokens - 1):
            raise PlanError(
                f"plan: end={self.end} must leave at least one of {self.prompt_tokens} tokens"
            )
        if not 0 <= self.exact_tokens <= self.prompt_tokens:
            raise PlanError(f"plan: exact_tokens={self.exact_tokens} of {self.prompt_tokens}")
        if not 0 <= self.continued_tokens <= self.prompt_tokens - self.exact_tokens:
            raise PlanError(
                f"plan: continued_tokens={self.continued_tokens} after {self.exact_tokens} "
                f"of {self.prompt_tokens}"
            )
        if self.spans and self.spans[0].target_start < self.placed_tokens:
            raise PlanError("plan: a span starts inside tokens that are already in place")
        for before, after in pairwise(self.spans):
            if before.target_end > after.target_start:
                raise PlanError(f"plan: spans overlap or are unordered at {after.target_start}")
        if self.spans and self.spans[-1].target_end > self.end:
            raise PlanError(f"plan: a span extends past the region's end {self.end}")
        for earlier, later in pairwise(self.recompute):
            if earlier.end > later.start:
                raise PlanError(f"plan: recompute runs overlap or are unordered at {later.start}")
        if self.recompute and self.recompute[-1].end > self.end:
            raise PlanError(f"plan: a recompute run extends past the region's end {self.end}")

    @property
    def executable(self) -> bool:
        """Whether an engine may execute this plan."""
        return self.reason is None and bool(self.spans)

    @property
    def outcome(self) -> Outcome:
        """The outcome so far. Never MATERIALISED, which needs an engine's confirmation."""
        if self.reason is not None:
            return self.reason.outcome
        return Outcome.DISCOVERY_ONLY if self.spans else Outcome.COLD

    @property
    def placed_tokens(self) -> int:
        """Leading tokens already in place before the plan is executed."""
        return self.exact_tokens + self.continued_tokens

    @property
    def gaps(self) -> tuple[Hole, ...]:
        """Runs of the reuse region not covered by a span."""
        covered = ((span.target_start, span.target_end) for span in self.spans)
        return tuple(_complement(covered, self.placed_tokens, self.end))

    @property
    def holes(self) -> tuple[Hole, ...]:
        """Everything the engine computes inside the region: gaps and recompute runs, merged."""
        return merge_holes((*self.gaps, *self.recompute))

    @property
    def copies(self) -> tuple[Span, ...]:
        """The parts of spans that are copied: spans minus recompute runs."""
        pieces = (span.clipped(start, end) for span, start, end in self.copied_runs())
        return tuple(piece for piece in pieces if piece is not None)

    def copied_runs(self) -> Iterator[tuple[Span, int, int]]:
        """The copies as (span, start, end), where target positions [start, end) are copied.

        Cheaper than `copies` because no new spans are built before the first kernel.
        """
        behind = 0
        for span in self.spans:
            start, span_end = span.target_start, span.target_end
            # Both lists are ordered, so runs before this span are not visited again.
            while behind < len(self.recompute) and self.recompute[behind].end <= start:
                behind += 1
            for run in self.recompute[behind:]:
                if run.start >= span_end:
                    break
                if run.start > start:
                    yield span, start, run.start
                start = run.end
            if start < span_end:
                yield span, start, span_end

    @property
    def reused_tokens(self) -> int:
        """Tokens whose K/V is copied."""
        return sum(end - start for _, start, end in self.copied_runs())

    @property
    def first_approximate_token(self) -> int | None:
        """Where K/V stops being exact once this plan is executed, or None if all of it is exact.

        K/V computed after exact K/V is exact. The first approximate copy taints everything after
        it, including the rest of the request.
        """
        if self.continued_tokens:
            return self.exact_tokens
        inexact = (start for span, start, _ in self.copied_runs() if not span.is_exact)
        return next(inexact, None)

    @property
    def hole_tokens(self) -> int:
        """Tokens of the region not covered by a span."""
        return sum(map(len, self.gaps))

    @property
    def recomputed_tokens(self) -> int:
        """Tokens inside spans that are recomputed for quality."""
        return sum(span.length for span in self.spans) - self.reused_tokens

    @property
    def tail_tokens(self) -> int:
        """Tokens after the region, computed by the engine's normal forward pass."""
        return self.prompt_tokens - self.end

    @property
    def donor_ids(self) -> tuple[str, ...]:
        """Donors used, in order of first use."""
        return tuple(dict.fromkeys(span.donor_id for span in self.spans))

    @property
    def tokens_by_donor(self) -> tuple[tuple[str, int], ...]:
        """Tokens taken from each donor, in order of first use."""
        tokens: dict[str, int] = {}
        for span, start, end in self.copied_runs():
            tokens[span.donor_id] = tokens.get(span.donor_id, 0) + end - start
        return tuple(tokens.items())

    @property
    def plan_id(self) -> str:
        """A stable 16-hex-digit id of this plan's contents."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def declined(self, reason: DeclineReason, detail: str = "") -> Plan:
        """This plan, declined."""
        return replace(self, reason=reason, detail=detail)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; :meth:`from_dict` reads it."""
        return {"version": PLAN_VERSION, **asdict(self)}

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a plan from a mapping.

        Raises
        ------
        SerialisationError
            If the mapping has another version or breaks an invariant.
        """
        try:
            if data["version"] != PLAN_VERSION:
                raise SerialisationError(
                    f"plan version {data['version']!r}; this library reads version {PLAN_VERSION}"
                )
            return cls(
                namespace=str(data["namespace"]),
                prompt_tokens=int(data["prompt_tokens"]),
                spans=tuple(
                    Span(**{**span, "kind": SpanKind(span["kind"])}) for span in data["spans"]
                ),
                recompute=tuple(Hole(run["start"], run["end"]) for run in data["recompute"]),
                end=int(data["end"]),
                exact_tokens=int(data["exact_tokens"]),
                continued_tokens=int(data.get("continued_tokens", 0)),
                policy=str(data["policy"]),
                reason=None if data["reason"] is None else DeclineReason(data["reason"]),
                detail=str(data["detail"]),
                evidence=_evidence(data["evidence"]),
                cost=CostEstimate(**data["cost"]),
            )
        except SerialisationError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise SerialisationError(f"not a plan: {error}") from error


def _evidence(data: Mapping[str, Any]) -> Evidence:
    regions = tuple(SimilarRegion(**region) for region in data["similar_regions"])
    return Evidence(**{**data, "similar_regions": regions})


def merge_holes(runs: Iterable[Hole]) -> tuple[Hole, ...]:
    """Sort holes and merge those that touch or overlap."""
    merged: list[Hole] = []
    for run in sorted(runs, key=attrgetter("start", "end")):
        if not merged or run.start > merged[-1].end:
            merged.append(run)
        elif run.end > merged[-1].end:
            merged[-1] = Hole(merged[-1].start, run.end)
    return tuple(merged)


def _complement(covered: Iterable[tuple[int, int]], start: int, end: int) -> Iterable[Hole]:
    position = start
    for first, stop in covered:
        if first > position:
            yield Hole(position, first)
        position = max(position, stop)
    if position < end:
        yield Hole(position, end)
