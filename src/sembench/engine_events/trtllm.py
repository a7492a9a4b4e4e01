"""The TensorRT-LLM connector's audit file: one JSON object per line, named by `event`.

A request goes through lookup → target_allocated → plan_dispatched → materialized.
`engine_blend_boundary`, `engine_blend_layer` and `engine_blend_layerwise` are the runtime
wrapper's reports of where recomputation began. Lines that are not JSON are ordinary log
lines, searched only for errors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sembench.engine_events.lines import note_trouble
from sembench.engine_events.summary import EngineSummary, SummaryBuilder
from sembench.json_text import parse_json

_TOKEN_KEYS = ("materialized_tokens", "tokens", "token_count", "covered_token_count")


class TrtllmParser:
    """Reads one audit file line by line."""

    def __init__(self) -> None:
        self._into = SummaryBuilder(engine="trtllm")
        self._planned_tokens: dict[str, int] = {}

    def feed(self, line: str) -> None:
        text = line.strip()
        if not text:
            return
        if not text.startswith("{"):
            note_trouble(text, self._into)
            return
        try:
            record = parse_json(text)
        except ValueError:
            self._into.malformed()
            return
        name = record.get("event")
        if not isinstance(name, str):
            self._into.malformed()
            return
        self._record(name, record)

    def finish(self) -> EngineSummary:
        return self._into.build()

    def _record(self, name: str, record: Mapping[str, Any]) -> None:
        into = self._into
        into.events[name] += 1
        if name == "donor_registered":
            into.donor_registrations += 1
        elif name == "lookup":
            self._lookup(record)
        elif name == "plan_dispatched":
            into.load_advertisements += 1
        elif name == "materialized":
            self._materialised(record)
        elif name == "engine_blend_boundary":
            into.engine_boundaries += 1
        elif name == "error" or record.get("error"):
            into.error(json.dumps(record, sort_keys=True))

    def _lookup(self, record: Mapping[str, Any]) -> None:
        if record.get("found") is True:
            self._into.semantic_hits += 1
            tokens = _whole(record.get("num_new_matched_tokens"))
            request_id = record.get("request_id")
            if tokens and isinstance(request_id, str | int):
                self._planned_tokens[str(request_id)] = tokens
        elif reason := record.get("rejection_reason"):
            self._into.rejected(str(reason))

    def _materialised(self, record: Mapping[str, Any]) -> None:
        """`materialized` is a block count, a list of blocks, or true.

        If the record has no token count, the lookup of the same request provides it.
        """
        units = _units(record.get("materialized"))
        if units is None:
            self._into.malformed()
            return
        if units == 0:
            self._into.rejected(str(record.get("reason") or "nothing_materialized"))
            return
        request_id = str(record.get("request_id", ""))
        tokens = next(
            (value for key in _TOKEN_KEYS if (value := _whole(record.get(key))) is not None),
            self._planned_tokens.get(request_id, 0),
        )
        self._into.materialised(tokens=tokens, units=units, request_id=request_id or None)
        if record.get("requires_rope_correction") is True:
            self._into.rope_corrections += 1


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value


def _units(value: Any) -> int | None:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, list):
        return len(value)
    return _whole(value)
