"""One summary of what an engine's own log or audit file says, whatever the engine.

Only events that say donor K/V *was* put in place count as materialized. Hits,
advertisements and starts are evidence and are counted separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from sembench.errors import ResultError

MAX_KEPT_LINES = 200
MAX_LINE_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSummary:
    """The summary in the public format; counts are totals over the file."""

    engine: str
    donor_registrations: int = 0
    semantic_hits: int = 0
    load_advertisements: int = 0
    materialization_events: int = 0
    materialized_tokens: int = 0
    materialized_units: int = 0
    """Pieces of donor K/V put in place: spans, segments or blocks, as the engine counts them."""
    rope_corrections: int = 0
    engine_boundaries: int = 0
    rejection_reasons: Mapping[str, int] = field(default_factory=dict)
    errors: tuple[str, ...] = ()
    error_count: int = 0
    runtime_warnings: tuple[str, ...] = ()
    events: Mapping[str, int] = field(default_factory=dict)
    malformed_lines: int = 0
    materialized_tokens_by_request: Mapping[str, int] = field(default_factory=dict)

    @property
    def materialized_semantic_kv_reuse(self) -> bool:
        """Whether the engine both found a donor and put its K/V in place."""
        return self.semantic_hits > 0 and (
            self.materialization_events > 0
            or self.materialized_tokens > 0
            or self.materialized_units > 0
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "donor_registrations": self.donor_registrations,
            "semantic_hits": self.semantic_hits,
            "load_advertisements": self.load_advertisements,
            "materialization_events": self.materialization_events,
            "materialized_tokens": self.materialized_tokens,
            "materialized_units": self.materialized_units,
            "rope_corrections": self.rope_corrections,
            "engine_boundaries": self.engine_boundaries,
            "rejection_reasons": dict(sorted(self.rejection_reasons.items())),
            "errors": list(self.errors),
            "error_count": self.error_count,
            "runtime_warnings": list(self.runtime_warnings),
            "events": dict(sorted(self.events.items())),
            "malformed_lines": self.malformed_lines,
            "materialized_tokens_by_request": dict(
                sorted(self.materialized_tokens_by_request.items())
            ),
            "materialized_semantic_kv_reuse": self.materialized_semantic_kv_reuse,
        }

    @classmethod
    def from_dict(cls, data: Any, *, where: str) -> Self:
        """Read a summary; fields an older file lacks stay at zero.

        Raises
        ------
        ResultError
            Naming the field that is not a count, list or object as required.
        """
        if not isinstance(data, Mapping) or not isinstance(data.get("engine"), str):
            raise ResultError(f"{where}: not an engine summary (an object with 'engine')")
        errors = _list(data, "errors", where)
        return cls(
            engine=data["engine"],
            donor_registrations=_count(data, "donor_registrations", where),
            semantic_hits=_count(data, "semantic_hits", where),
            load_advertisements=_count(data, "load_advertisements", where),
            materialization_events=_count(data, "materialization_events", where),
            materialized_tokens=_count(data, "materialized_tokens", where),
            materialized_units=_count(data, "materialized_units", where),
            rope_corrections=_count(data, "rope_corrections", where),
            engine_boundaries=_count(data, "engine_boundaries", where),
            rejection_reasons=_counts(data, "rejection_reasons", where),
            errors=errors,
            error_count=max(len(errors), _count(data, "error_count", where)),
            runtime_warnings=_list(data, "runtime_warnings", where),
            events=_counts(data, "events", where),
            malformed_lines=_count(data, "malformed_lines", where),
            materialized_tokens_by_request=_counts(data, "materialized_tokens_by_request", where),
        )


@dataclass(slots=True)
class SummaryBuilder:
    """Collects what a parser reads; memory grows with requests, not with lines."""

    engine: str
    donor_registrations: int = 0
    semantic_hits: int = 0
    load_advertisements: int = 0
    materialization_events: int = 0
    materialized_tokens: int = 0
    materialized_units: int = 0
    rope_corrections: int = 0
    engine_boundaries: int = 0
    error_count: int = 0
    malformed_lines: int = 0
    rejection_reasons: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    by_request: Counter[str] = field(default_factory=Counter)
    _errors: list[str] = field(default_factory=list)
    _warnings: list[str] = field(default_factory=list)

    def materialised(self, *, tokens: int, units: int = 1, request_id: str | None = None) -> None:
        """The engine put `tokens` of donor K/V in place, in `units` pieces."""
        self.materialization_events += 1
        self.materialized_tokens += tokens
        self.materialized_units += units
        if request_id:
            self.by_request[request_id] += tokens

    def rejected(self, reason: str) -> None:
        """The engine did not reuse, and says why."""
        self.rejection_reasons[reason or "unspecified"] += 1

    def malformed(self) -> None:
        """A line that starts like an event but cannot be read; never counted as reuse."""
        self.malformed_lines += 1

    def error(self, line: str) -> None:
        """The engine reported an error."""
        self.error_count += 1
        if len(self._errors) < MAX_KEPT_LINES:
            self._errors.append(line.strip()[:MAX_LINE_CHARS])

    def warning(self, line: str) -> None:
        """A runtime below the engine warned about something that is not an engine error."""
        if len(self._warnings) < MAX_KEPT_LINES:
            self._warnings.append(line.strip()[:MAX_LINE_CHARS])

    def build(self) -> EngineSummary:
        return EngineSummary(
            engine=self.engine,
            donor_registrations=self.donor_registrations,
            semantic_hits=self.semantic_hits,
            load_advertisements=self.load_advertisements,
            materialization_events=self.materialization_events,
            materialized_tokens=self.materialized_tokens,
            materialized_units=self.materialized_units,
            rope_corrections=self.rope_corrections,
            engine_boundaries=self.engine_boundaries,
            rejection_reasons=dict(self.rejection_reasons),
            errors=tuple(self._errors),
            error_count=self.error_count,
            runtime_warnings=tuple(self._warnings),
            events=dict(self.events),
            malformed_lines=self.malformed_lines,
            materialized_tokens_by_request=dict(self.by_request),
        )


def _count(data: Mapping[str, Any], key: str, where: str) -> int:
    value = data.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ResultError(f"{where}.{key}: expected a count of 0 or more, got {value!r}")
    return value


def _counts(data: Mapping[str, Any], key: str, where: str) -> dict[str, int]:
    value = data.get(key, {})
    if not isinstance(value, Mapping):
        raise ResultError(f"{where}.{key}: expected an object of counts, got {value!r}")
    return {str(name): _count(value, name, f"{where}.{key}") for name in value}


def _list(data: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = data.get(key, [])
    if not isinstance(value, list):
        raise ResultError(f"{where}.{key}: expected a list, got {value!r}")
    return tuple(str(entry) for entry in value)


def two_views(first: EngineSummary, second: EngineSummary) -> EngineSummary:
    """Combine two accounts of the same requests (a log and an audit stream).

    Each counter takes the larger account rather than the sum, because both report the
    same events.
    """

    def larger(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int]:
        return {key: max(left.get(key, 0), right.get(key, 0)) for key in {*left, *right}}

    return EngineSummary(
        engine=first.engine,
        donor_registrations=max(first.donor_registrations, second.donor_registrations),
        semantic_hits=max(first.semantic_hits, second.semantic_hits),
        load_advertisements=max(first.load_advertisements, second.load_advertisements),
        materialization_events=max(first.materialization_events, second.materialization_events),
        materialized_tokens=max(first.materialized_tokens, second.materialized_tokens),
        materialized_units=max(first.materialized_units, second.materialized_units),
        rope_corrections=max(first.rope_corrections, second.rope_corrections),
        engine_boundaries=max(first.engine_boundaries, second.engine_boundaries),
        rejection_reasons=larger(first.rejection_reasons, second.rejection_reasons),
        errors=(*first.errors, *second.errors),
        error_count=first.error_count + second.error_count,
        runtime_warnings=(*first.runtime_warnings, *second.runtime_warnings),
        events=larger(first.events, second.events),
        malformed_lines=first.malformed_lines + second.malformed_lines,
        materialized_tokens_by_request=larger(
            first.materialized_tokens_by_request, second.materialized_tokens_by_request
        ),
    )
