"""LMCache's log lines: what was stored, requested and actually retrieved.

::

    Stored|Storing N[ out of total M][ new] tokens
    Reqid: …, Total tokens T, Inference Engine computed tokens: C, LMCache hit tokens: H
    Retrieved|Reusing N[/ out of M] tokens

A hit is only an announcement; "Retrieved" (or "Reusing") means the K/V reached the engine.
"""

from __future__ import annotations

import re

from sembench.engine_events.lines import note_trouble
from sembench.engine_events.summary import EngineSummary, SummaryBuilder

_STORED = re.compile(r"\b(?:Stored|Storing) (\d+)(?: out of total \d+)?(?: new)? tokens\b")
_RETRIEVED = re.compile(
    r"\b(?:Retrieved|Reusing) (\d+)(?:(?:/\d+)|(?: out of (?:total )?\d+))? tokens\b"
)
_LOOKUP = re.compile(
    r"Reqid:? *(?P<request>[^\s,]*),? Total tokens:? (?P<total>\d+), "
    r"Inference Engine computed tokens: (?P<computed>\d+), LMCache hit tokens: (?P<hit>\d+)"
)
_BROKEN = re.compile(r"\b(?:Stored|Retrieved|Reusing) \S+ (?:out of \S+ )?tokens\b")


class LmcacheParser:
    """Reads one LMCache log line by line."""

    def __init__(self) -> None:
        self._into = SummaryBuilder(engine="lmcache")

    def feed(self, line: str) -> None:
        into = self._into
        if lookup := _LOOKUP.search(line):
            into.events["lookup"] += 1
            # Tokens the engine had computed itself are its own prefix hit, not LMCache's.
            if int(lookup["hit"]) > int(lookup["computed"]):
                into.semantic_hits += 1
                into.load_advertisements += 1
        elif stored := _STORED.search(line):
            into.events["stored"] += 1
            into.donor_registrations += int(int(stored[1]) > 0)
        elif retrieved := _RETRIEVED.search(line):
            into.events["retrieved"] += 1
            if tokens := int(retrieved[1]):
                into.materialised(tokens=tokens)
        elif _BROKEN.search(line):
            into.malformed()
        else:
            note_trouble(line, into)

    def finish(self) -> EngineSummary:
        return self._into.build()
