"""The connector's lines in a vLLM log.

In the order they occur for a request::

    SemBlend donor registered request_id=… namespace=… tokens=N blocks=N
    SemBlend semantic lookup hit request_id=… donor_id=… similarity=… kind=… reusable_tokens=N …
    SemBlend request-local experimental load advertised request_id=… donor_id=… tokens=N
                                                (exact, certified or experimental)
    SemBlend materializing …                    (a start: evidence, not reuse)
    SemBlend materialized request_id=… donor_id=… tokens=N

Lines that are JSON objects are audit records of the connector and are parsed as such, so
a log that mixes both needs no splitting.
"""

from __future__ import annotations

import re

from sembench.engine_events.connector_audit import ConnectorAuditParser
from sembench.engine_events.lines import count, fields, note_trouble
from sembench.engine_events.summary import EngineSummary, SummaryBuilder, two_views

_EVENT = re.compile(
    r"SemBlend (?P<name>donor registered|semantic lookup hit|semantic lookup miss|"
    r"request-local (?:exact|certified|experimental) load advertised|"
    r"materializing|materialized|declined)\b"
    r"(?P<rest>.*)"
)


class VllmParser:
    """Reads one vLLM log line by line."""

    def __init__(self) -> None:
        self._log = SummaryBuilder(engine="vllm")
        self._audit = ConnectorAuditParser(engine="vllm")

    def feed(self, line: str) -> None:
        if line.lstrip().startswith("{"):
            self._audit.feed(line)
            return
        match = _EVENT.search(line)
        if match is None:
            note_trouble(line, self._log)
        else:
            self._event(match["name"], fields(match["rest"]))

    def finish(self) -> EngineSummary:
        return two_views(self._log.build(), self._audit.finish())

    def _event(self, name: str, found: dict[str, str]) -> None:
        into = self._log
        tokens = count(found.get("tokens"))
        if name == "materialized" and tokens is None:
            into.malformed()
            return
        into.events[_key(name)] += 1
        if name == "donor registered":
            into.donor_registrations += 1
        elif name == "semantic lookup hit":
            into.semantic_hits += 1
        elif name.endswith("load advertised"):
            into.load_advertisements += 1
        elif name == "materialized" and tokens:
            into.materialised(tokens=tokens, request_id=found.get("request_id"))
        elif name in ("semantic lookup miss", "declined"):
            into.rejected(found.get("reason", ""))


def _key(name: str) -> str:
    """A line's name in the counts; all kinds of loads share one."""
    if name.endswith("load advertised"):
        name = "request-local experimental load advertised"
    return name.replace(" ", "_").replace("-", "_")
