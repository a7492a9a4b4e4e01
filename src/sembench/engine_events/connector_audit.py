"""The connector's audit stream (JSONL, `schema_version` 2), request by request.

Records are identified by `connector_id`, `request_id`, `request_seq` and `event_seq`. A
record seen twice (a log shipped by two collectors) counts once. Of the many event names,
only `runtime_materialized` means that donor K/V was put in place. Unknown names are
counted under their own name and have no other effect.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sembench.engine_events.summary import EngineSummary, SummaryBuilder
from sembench.json_text import parse_json

SCHEMA_VERSION = 2
MATERIALISED = "runtime_materialized"
_HIT = "semantic_lookup_hit"
_ADVERTISED = frozenset(
    {
        "request_only_load_advertised",
        "semantic_span_load_advertised",
        "segmented_prefill_segment_advertised",
    }
)
_FAILED = frozenset(
    {"lookup_error", "runtime_materialization_failed_loud", "load_error_blocks_reported"}
)
_REASON_KEYS = ("declined_reason", "miss_rejection_reason", "rejection_reason", "reason")
_REFUSING = ("_skipped", "_declined", "_rejected", "_miss", "_missed", "_suppressed")


@dataclass(slots=True)
class AuditedRequest:
    """Everything the stream says about one request."""

    request_id: str
    prompt_tokens: int | None = None
    semantic_hit: bool = False
    similarity: float | None = None
    advertised_tokens: int = 0
    materialised_tokens: int = 0
    layers_materialised: int | None = None
    boundary: int | None = None
    donors_used: int | None = None
    reasons: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)


class ConnectorAuditParser:
    """Reads one audit stream line by line."""

    def __init__(self, *, engine: str = "connector") -> None:
        self._into = SummaryBuilder(engine=engine)
        self._seen: set[tuple[Any, ...]] = set()
        self.requests: dict[str, AuditedRequest] = {}

    def feed(self, line: str) -> None:
        """Read one line; skip blank lines and count unreadable ones."""
        text = line.strip()
        if not text:
            return
        try:
            record = parse_json(text)
        except ValueError:
            self._into.malformed()
            return
        name = record.get("event") if isinstance(record, dict) else None
        version = record.get("schema_version", SCHEMA_VERSION) if isinstance(record, dict) else None
        if not isinstance(name, str) or version != SCHEMA_VERSION:
            self._into.malformed()
            return
        if not self._is_repeat(record):
            self._record(name, record)

    def finish(self) -> EngineSummary:
        return self._into.build()

    def _is_repeat(self, record: Mapping[str, Any]) -> bool:
        if record.get("event_seq") is None:
            return False
        parts = ("connector_id", "request_id", "request_seq", "event_seq")
        key = tuple(str(record.get(part)) for part in parts)
        if key in self._seen:
            return True
        self._seen.add(key)
        return False

    def _record(self, name: str, record: Mapping[str, Any]) -> None:
        into = self._into
        into.events[name] += 1
        request = self._request(record)
        if request is not None:
            request.events.append(name)
        if name == "donor_registered":
            into.donor_registrations += 1
        elif name == _HIT:
            into.semantic_hits += 1
        elif name in _ADVERTISED:
            into.load_advertisements += 1
        elif name == MATERIALISED:
            self._materialised(record, request)
        elif name in _FAILED:
            into.error(json.dumps(record, sort_keys=True))
        elif any(mark in name for mark in _REFUSING):
            reason = next((str(record[key]) for key in _REASON_KEYS if record.get(key)), name)
            into.rejected(reason)
            if request is not None:
                request.reasons.append(reason)
        if request is not None:
            _learn(request, name, record)

    def _materialised(self, record: Mapping[str, Any], request: AuditedRequest | None) -> None:
        tokens = _whole(record.get("tokens"))
        if tokens is None:
            self._into.malformed()
            return
        if tokens == 0:
            self._into.rejected("no_tokens_materialized")
            return
        pieces = record.get("pieces")
        units = len(pieces) if isinstance(pieces, list) and pieces else _whole(pieces) or 1
        self._into.materialised(
            tokens=tokens, units=units, request_id=request.request_id if request else None
        )
        if record.get("requires_rope_correction") is True:
            self._into.rope_corrections += 1
        if request is not None:
            request.materialised_tokens += tokens
            request.layers_materialised = _whole(record.get("layers_materialized"))

    def _request(self, record: Mapping[str, Any]) -> AuditedRequest | None:
        request_id = record.get("request_id")
        if not isinstance(request_id, str) or not request_id:
            return None
        return self.requests.setdefault(request_id, AuditedRequest(request_id=request_id))


def audited_requests(lines: Iterable[str]) -> dict[str, AuditedRequest]:
    """What an audit stream says about each request, by engine request id."""
    parser = ConnectorAuditParser()
    for line in lines:
        parser.feed(line)
    return parser.requests


def _learn(request: AuditedRequest, name: str, record: Mapping[str, Any]) -> None:
    if name == "request_first_seen":
        request.prompt_tokens = _whole(record.get("prompt_tokens"))
    elif name == _HIT:
        request.semantic_hit = True
        similarity = record.get("similarity")
        if isinstance(similarity, int | float) and not isinstance(similarity, bool):
            request.similarity = float(similarity)
    elif name in _ADVERTISED:
        request.advertised_tokens += (
            _whole(record.get("token_count")) or _whole(record.get("tokens")) or 0
        )
        request.boundary = _whole(record.get("boundary"))
        donors = record.get("donors_used")
        request.donors_used = len(donors) if isinstance(donors, list) else _whole(donors)


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value
