"""The audit stream and the log lines of every adapter, in the formats other tools read.

A record is one JSON line, `schema_version` 2, joined to others by `connector_id`,
`request_id`, `request_seq` and `event_seq`. Log lines, for people and log collectors, say the
same in one line of text. Both come from one call, so they cannot disagree. Neither can delay
or fail a request: a thread writes records from a bounded queue, and what does not fit is
counted.

A request gets at most one INFO line: how it ended. The steps before that are DEBUG.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import queue
import secrets
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

from semblend.core.faults import clock_jump_s
from semblend.core.ledger import Settlement
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.integration.auditing.audit_file import RotatingLines

SCHEMA_VERSION = 2
MAX_BYTES = 256 * 2**20
FILES = 5
PLANNED = "planned"
"""The reason of a lookup hit that will be carried out."""
_QUEUED_RECORDS = 4096
_REMEMBERED_REQUESTS = 65_536


class AuditStream:
    """Numbers and writes events; without a path it only logs. Thread-safe."""

    def __init__(
        self,
        *,
        engine: str,
        logger: logging.Logger,
        path: str | Path | None = None,
        max_bytes: int = MAX_BYTES,
        files: int = FILES,
        prompts: bool = False,
    ) -> None:
        """`prompts`: also write what was asked, as token ids; off unless somebody wants it."""
        self._prompts = prompts
        self.connector_id = f"{engine}-{os.getpid()}-{secrets.token_hex(4)}"
        self.dropped = 0
        """Records lost because the disk was slower than the engine."""
        self._engine = engine
        self._logger = logger
        self._events = itertools.count(1)
        self._request_numbers: OrderedDict[str, int] = OrderedDict()
        self._requests = itertools.count(1)
        self._lock = threading.Lock()
        self._max_bytes = max_bytes
        self._files = files
        self._spoken: OrderedDict[str, None] = OrderedDict()
        """Requests that already have their INFO line."""
        self._queue: queue.Queue[str | None] | None = None
        self._thread: threading.Thread | None = None
        if path is not None:
            self._queue = queue.Queue(maxsize=_QUEUED_RECORDS)
            self._thread = threading.Thread(
                target=self._write_all, args=(Path(path),), name="semblend-audit", daemon=True
            )
            self._thread.start()

    # -- events --------------------------------------------------------------------

    def event(self, name: str, request_id: str | None = None, **fields: Any) -> None:
        """Write one record. `fields` are the event's own, as plain JSON values."""
        if self._queue is None:
            return
        record = {
            "schema_version": SCHEMA_VERSION,
            "engine": self._engine,
            "connector_id": self.connector_id,
            "event_seq": next(self._events),
            "event": name,
            "time": time.time() + clock_jump_s(),
            **fields,
        }
        if request_id is not None:
            record["request_id"] = request_id
            record["request_seq"] = self._request_seq(request_id)
        try:
            self._queue.put_nowait(json.dumps(record, sort_keys=True, default=str))
        except queue.Full:
            self.dropped += 1

    def first_seen(self, request_id: str, tokens: TokenArray) -> None:
        """A request arrived. Its prompt is written only where prompts are recorded."""
        if self._queue is None:
            return
        asked = {"token_ids": tokens.tolist()} if self._prompts else {}
        self.event("request_first_seen", request_id, prompt_tokens=len(tokens), **asked)

    def donor_registered(
        self, request_id: str, *, donor_id: str, namespace: str, tokens: int, blocks: int
    ) -> None:
        """Every rank holds a prompt's K/V, and it can be found."""
        self._logger.log(
            self._level(request_id),
            "SemBlend donor registered request_id=%s namespace=%s tokens=%d blocks=%d",
            request_id,
            namespace,
            tokens,
            blocks,
        )
        self.event(
            "donor_registered",
            request_id,
            donor_id=donor_id,
            namespace=namespace,
            tokens=tokens,
            blocks=blocks,
        )

    def lookup_hit(
        self,
        request_id: str,
        *,
        donor_id: str,
        kind: str,
        reusable_tokens: int,
        reason: str,
        similarity: float | None = None,
        **fields: Any,
    ) -> None:
        """Reusable spans, or a donor of similar meaning, were found: evidence, not reuse."""
        self._logger.log(
            logging.DEBUG if reason == PLANNED else self._level(request_id),
            "SemBlend semantic lookup hit request_id=%s donor_id=%s similarity=%s kind=%s "
            "reusable_tokens=%d reason=%s",
            request_id,
            donor_id,
            "none" if similarity is None else f"{similarity:.4f}",
            kind,
            reusable_tokens,
            reason,
        )
        self.event(
            "semantic_lookup_hit",
            request_id,
            donor_id=donor_id,
            similarity=similarity,
            kind=kind,
            reusable_tokens=reusable_tokens,
            reason=reason,
            **fields,
        )

    def lookup_miss(self, request_id: str, *, reason: str, **fields: Any) -> None:
        """Nothing to reuse was found."""
        self._logger.debug(
            "SemBlend semantic lookup miss request_id=%s reason=%s", request_id, reason
        )
        self.event("semantic_lookup_miss", request_id, miss_rejection_reason=reason, **fields)

    def load_advertised(
        self,
        event: str,
        request_id: str,
        *,
        donor_id: str,
        tokens: int,
        standing: str = "experimental",
        **fields: Any,
    ) -> None:
        """The engine was told that tokens of this request can be supplied.

        `standing` is the kind of load: exact, certified or experimental.
        """
        self._logger.debug(
            "SemBlend request-local %s load advertised request_id=%s donor_id=%s tokens=%d",
            standing,
            request_id,
            donor_id,
            tokens,
        )
        self.event(event, request_id, donor_id=donor_id, token_count=tokens, **fields)

    def looked_up(self, request_id: str, plan: Plan) -> None:
        """The first plan of a request."""
        reason, evidence = plan.reason, plan.evidence
        if plan.spans:
            self.lookup_hit(
                request_id,
                donor_id=",".join(plan.donor_ids),
                kind=plan.spans[0].kind.value,
                reusable_tokens=plan.reused_tokens,
                reason=PLANNED if reason is None else reason.value,
                lookup_ms=evidence.lookup_ms,
                spans=len(plan.spans),
                matched_tokens=evidence.matched_tokens,
            )
            if reason is not None:
                self.event("discovery_only_no_supply", request_id, reason=reason.value)
        elif reason is DeclineReason.SHORT_PROMPT:
            self.event("lookup_skipped_short_prompt", request_id)
        elif reason is DeclineReason.INTERNAL_ERROR:
            self.event("lookup_error", request_id, detail=plan.detail)
        else:
            self.lookup_miss(
                request_id,
                reason="no_match" if reason is None else reason.value,
                miss_donor_count=evidence.candidate_donors,
                lookup_ms=evidence.lookup_ms,
            )

    def advertised(self, event: str, request_id: str, plan: Plan, *, standing: str) -> None:
        """The engine was told that a plan can be carried out."""
        first = plan.spans[0]
        self.load_advertised(
            event,
            request_id,
            donor_id=",".join(plan.donor_ids),
            tokens=plan.reused_tokens,
            standing=standing,
            boundary=plan.end,
            target_start=first.target_start,
            donor_start=first.donor_start,
            pieces=len(plan.copies),
            donors_used=len(plan.donor_ids),
            hole_tokens=plan.hole_tokens,
        )

    def materialising(self, request_id: str, *, donor_id: str, tokens: int) -> None:
        """A load was sent to the workers: a start, not reuse."""
        self._logger.debug(
            "SemBlend materializing request_id=%s donor_id=%s tokens=%d",
            request_id,
            donor_id,
            tokens,
        )
        self.event("runtime_materialization_started", request_id, donor_id=donor_id, tokens=tokens)

    def materialised(
        self, request_id: str, *, donor_id: str, tokens: int, layers: int, **fields: Any
    ) -> None:
        """Every rank confirmed that donor K/V is in place. Only this is reuse."""
        self._logger.log(
            self._level(request_id),
            "SemBlend materialized request_id=%s donor_id=%s tokens=%d",
            request_id,
            donor_id,
            tokens,
        )
        self.event(
            "runtime_materialized",
            request_id,
            donor_id=donor_id,
            tokens=tokens,
            layers_materialized=layers,
            **fields,
        )

    def declined(self, event: str, request_id: str, *, reason: str, **fields: Any) -> None:
        """Something that was found is not used, and why."""
        self._logger.log(
            self._level(request_id), "SemBlend declined request_id=%s reason=%s", request_id, reason
        )
        self.event(event, request_id, declined_reason=reason, **fields)

    def failed(self, request_id: str, *, reason: str, detail: str, blocks: int) -> None:
        """A load failed; its blocks were reported and are computed exactly."""
        self._logger.warning(
            "SemBlend load failed request_id=%s reason=%s: %s; computed exactly instead",
            request_id,
            reason,
            detail,
        )
        self.event(
            "load_error_blocks_reported", request_id, reason=reason, detail=detail, blocks=blocks
        )

    def settled(self, settlement: Settlement | None, **fields: Any) -> None:
        """A request ended; `semblend report` adds these up."""
        if settlement is None:
            return
        self.event(
            "request_settled",
            settlement.request_id,
            outcome=settlement.outcome.value,
            settled_reason=None if settlement.reason is None else settlement.reason.value,
            prompt_tokens=settlement.prompt_tokens,
            exact_tokens=settlement.exact_tokens,
            reused_tokens=settlement.materialised_tokens,
            reusable_tokens=settlement.reusable_tokens,
            recomputed_tokens=settlement.recomputed_tokens,
            tokens_by_donor=dict(settlement.tokens_by_donor),
            cold_units=settlement.cost.cold,
            saved_units=settlement.cost.saved,
            **fields,
        )

    # -- writing -------------------------------------------------------------------

    def flush(self) -> None:
        if self._queue is not None:
            self._queue.join()

    def close(self) -> None:
        """Write the rest and stop. Idempotent."""
        if self._thread is not None and self._queue is not None and self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _level(self, request_id: str) -> int:
        """INFO for the first line about how a request ended, DEBUG for all others."""
        with self._lock:
            if request_id in self._spoken:
                return logging.DEBUG
            self._spoken[request_id] = None
            if len(self._spoken) > _REMEMBERED_REQUESTS:
                self._spoken.popitem(last=False)
            return logging.INFO

    def _request_seq(self, request_id: str) -> int:
        """The request's number, in order of first mention."""
        with self._lock:
            number = self._request_numbers.get(request_id)
            if number is None:
                number = self._request_numbers[request_id] = next(self._requests)
                if len(self._request_numbers) > _REMEMBERED_REQUESTS:
                    self._request_numbers.popitem(last=False)
            return number

    def _write_all(self, path: Path) -> None:
        records = self._queue
        if records is None:
            return
        file = self._open(path)
        while (line := records.get()) is not None:
            if file is not None:
                try:
                    file.write(line)
                    if records.empty():
                        file.flush()
                except OSError as error:
                    self._logger.error("SemBlend audit stream stopped: %s", error)
                    file = None
            records.task_done()
        if file is not None:
            file.close()
        records.task_done()

    def _open(self, path: Path) -> RotatingLines | None:
        try:
            return RotatingLines(path, max_bytes=self._max_bytes, files=self._files)
        except OSError as error:
            self._logger.error("SemBlend audit stream %s cannot be written: %s", path, error)
            return None
