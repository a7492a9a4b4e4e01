"""The mock engine's log, in an engine's own format, and its audit stream.

Written only from `AdmittedRequest.logged`, never from what the response claims.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sembench.engine_events.connector_audit import SCHEMA_VERSION
from sembench.mock_engine.engine import AdmittedRequest
from sembench.mock_engine.settings import LogFormat


class Journal:
    """Appends to both files; a request's lines are on disk before its answer starts."""

    def __init__(
        self,
        *,
        log_path: Path | None,
        log_format: LogFormat,
        audit_path: Path | None,
        block_size: int,
    ) -> None:
        self._log_path = log_path
        self._audit_path = audit_path
        self._lines = _FORMATS[log_format]
        self._block_size = block_size
        self._sequence = itertools.count()

    def record(self, admitted: AdmittedRequest) -> None:
        if self._log_path is not None:
            _append(self._log_path, self._lines(admitted, self._block_size))
        if self._audit_path is not None:
            _append(self._audit_path, self._audit(admitted))

    def _audit(self, admitted: AdmittedRequest) -> Iterable[str]:
        request_seq = next(self._sequence)
        for event_seq, (name, payload) in enumerate(_audit_events(admitted, self._block_size)):
            yield json.dumps(
                {
                    "schema_version": SCHEMA_VERSION,
                    "connector_id": "mock",
                    "request_id": admitted.request_id,
                    "request_seq": request_seq,
                    "event_seq": event_seq,
                    "event": name,
                    **payload,
                },
                sort_keys=True,
            )


def _audit_events(
    admitted: AdmittedRequest, block_size: int
) -> Iterable[tuple[str, dict[str, Any]]]:
    truth = admitted.logged
    yield "request_first_seen", {"prompt_tokens": admitted.prompt_tokens}
    if truth.exact_tokens:
        yield "exact_prefix_load_advertised", {"tokens": truth.exact_tokens}
    if not truth.spans:
        yield "semantic_lookup_miss", {"miss_rejection_reason": "no_match"}
    else:
        yield "semantic_lookup_hit", {"similarity": 1.0, "donor_id": truth.spans[0].donor_id}
        if not truth.reused_tokens:
            yield "discovery_only_no_supply", {}
    if truth.reused_tokens:
        first = truth.spans[0]
        yield (
            "semantic_span_load_advertised",
            {
                "boundary": first.target_start,
                "target_start": first.target_start,
                "donor_start": first.donor_start,
                "token_count": truth.reused_tokens,
                "pieces": len(truth.spans),
                "donors_used": sorted({span.donor_id for span in truth.spans}),
            },
        )
        yield "runtime_materialization_started", {}
        yield (
            "runtime_materialized",
            {"tokens": truth.reused_tokens, "layers_materialized": 1, "pieces": len(truth.spans)},
        )
    else:
        yield "donor_registered", {"tokens": admitted.prompt_tokens, "block_size": block_size}


def _vllm(admitted: AdmittedRequest, block_size: int) -> Iterable[str]:
    truth, request = admitted.logged, f"request_id={admitted.request_id}"
    if truth.spans:
        found = sum(span.length for span in truth.spans)
        yield (
            f"INFO SemBlend semantic lookup hit {request} donor_id={truth.spans[0].donor_id} "
            f"similarity=1.0 kind=segmented reusable_tokens={found} reason=ok"
        )
    if truth.reused_tokens:
        yield (
            f"INFO SemBlend request-local experimental load advertised {request} "
            f"donor_id={truth.spans[0].donor_id} tokens={truth.reused_tokens}"
        )
        yield f"INFO SemBlend materializing {request}"
        for span in truth.spans:
            donor = f"donor_id={span.donor_id}"
            yield f"INFO SemBlend materialized {request} {donor} tokens={span.length}"
    else:
        yield (
            f"INFO SemBlend donor registered {request} namespace={admitted.namespace} "
            f"tokens={admitted.prompt_tokens} blocks={admitted.prompt_tokens // block_size}"
        )


def _sglang(admitted: AdmittedRequest, _block_size: int) -> Iterable[str]:
    truth, request = admitted.logged, f"request_id={admitted.request_id}"
    if truth.spans:
        yield (
            f"[FUZZY RADIX] Fuzzy match success: {request} cached={truth.reused_tokens} "
            f"quality_cosine=1.0"
        )
    if truth.reused_tokens:
        for span in truth.spans:
            target = f"[{span.target_start},{span.target_start + span.length})"
            yield (
                f"[FUZZY RADIX] segmented prefill realized donor phase: {request} "
                f"donor_tokens={span.length} target={target} direct_paged_kv=True"
            )
        yield f"[FUZZY] Realized {truth.reused_tokens} fuzzy tokens"
    else:
        yield f"[FUZZY] register_donor: ok {request} tokens={admitted.prompt_tokens}"


def _trtllm(admitted: AdmittedRequest, _block_size: int) -> Iterable[str]:
    truth = admitted.logged
    found = sum(span.length for span in truth.spans)
    events: list[dict[str, Any]] = [
        {
            "event": "lookup",
            "found": bool(truth.spans),
            "num_new_matched_tokens": found,
            "rejection_reason": None if truth.spans else "no_match",
        }
    ]
    if truth.reused_tokens:
        events.append({"event": "plan_dispatched"})
        events.append(
            {
                "event": "materialized",
                "materialized": len(truth.spans),
                "tokens": truth.reused_tokens,
                "requires_rope_correction": any(
                    span.donor_start != span.target_start for span in truth.spans
                ),
            }
        )
    else:
        events.append({"event": "donor_registered"})
    for event in events:
        yield json.dumps({"request_id": admitted.request_id, **event}, sort_keys=True)


def _lmcache(admitted: AdmittedRequest, _block_size: int) -> Iterable[str]:
    truth = admitted.logged
    found = sum(span.length for span in truth.spans)
    yield (
        f"LMCache INFO: Reqid: {admitted.request_id}, Total tokens {admitted.prompt_tokens}, "
        f"Inference Engine computed tokens: {truth.exact_tokens}, "
        f"LMCache hit tokens: {truth.exact_tokens + found if found else 0}"
    )
    if truth.reused_tokens:
        yield (f"LMCache INFO: Retrieved {truth.reused_tokens} out of {truth.reused_tokens} tokens")
    else:
        yield (
            f"LMCache INFO: Stored {admitted.prompt_tokens} out of total "
            f"{admitted.prompt_tokens} tokens"
        )


_FORMATS = {
    LogFormat.VLLM: _vllm,
    LogFormat.SGLANG: _sglang,
    LogFormat.TRTLLM: _trtllm,
    LogFormat.LMCACHE: _lmcache,
}


def _append(path: Path, lines: Iterable[str]) -> None:
    with path.open("a", encoding="utf-8") as stream:
        stream.writelines(line + "\n" for line in lines)
