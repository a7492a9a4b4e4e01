"""The fuzzy radix cache's lines in an SGLang log.

::

    [FUZZY] register_donor: ok request_id=… tokens=N          (or register_donor_async)
    … semantic|fuzzy … hit|matched … similarity|score=x … tokens=N
    [FUZZY RADIX] Fuzzy match success: … cached=N … quality_cosine=x
    [FUZZY] Realized N fuzzy tokens
    [FUZZY RADIX] segmented prefill realized donor phase: … donor_tokens=N target=[a,b) …

A segmented prefill reports the same tokens twice: once per phase, and once in a closing
"Realized". If a log has phases, only the phases count.
"""

from __future__ import annotations

import re

from sembench.engine_events.lines import count, fields, note_trouble
from sembench.engine_events.summary import EngineSummary, SummaryBuilder

_REGISTERED = re.compile(r"\[FUZZY\] register_donor(?:_async)?: ok\b")
_MATCH = re.compile(r"\[FUZZY RADIX\] Fuzzy match success:")
_PHASE = re.compile(r"\[FUZZY RADIX\] segmented prefill realized donor phase:")
_REALISED = re.compile(r"\[FUZZY\] Realized (?P<tokens>\S+) fuzzy tokens\b")
_GENERIC_HIT = re.compile(
    r"\b(?:semantic|fuzzy)\b.*\b(?:hit|matched)\b.*\b(?:similarity|score)=", re.IGNORECASE
)
_REJECTED = re.compile(r"\[FUZZY(?: RADIX)?\].*\b(?:rejected|declined|skipped)\b", re.IGNORECASE)


class SglangParser:
    """Reads one SGLang log line by line."""

    def __init__(self) -> None:
        self._into = SummaryBuilder(engine="sglang")
        self._realised: list[tuple[int, str | None]] = []
        self._phases: list[tuple[int, str | None]] = []

    def feed(self, line: str) -> None:
        found = fields(line)
        into = self._into
        if _REGISTERED.search(line):
            into.events["donor_registered"] += 1
            into.donor_registrations += 1
        elif _PHASE.search(line):
            self._reuse("donor_phase", found.get("donor_tokens"), found, self._phases)
        elif realised := _REALISED.search(line):
            self._reuse("realized", realised["tokens"], found, self._realised)
        elif _MATCH.search(line):
            into.events["fuzzy_match_success"] += 1
            into.semantic_hits += 1
            into.load_advertisements += int(bool(count(found.get("cached"))))
        elif _REJECTED.search(line):
            into.rejected(found.get("reason", ""))
        elif _GENERIC_HIT.search(line):
            into.events["semantic_hit"] += 1
            into.semantic_hits += 1
        else:
            note_trouble(line, into)

    def finish(self) -> EngineSummary:
        for tokens, request_id in self._phases or self._realised:
            self._into.materialised(tokens=tokens, request_id=request_id)
        self._phases, self._realised = [], []
        return self._into.build()

    def _reuse(
        self,
        name: str,
        tokens: str | None,
        found: dict[str, str],
        seen: list[tuple[int, str | None]],
    ) -> None:
        number = count(tokens)
        if number is None:
            self._into.malformed()
            return
        self._into.events[name] += 1
        if number:
            seen.append((number, found.get("request_id") or found.get("rid")))
